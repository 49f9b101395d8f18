"""Data sources, file formats, toy sets, made-up outliers and streaming readers."""

from besnn.data.builtin import digits, two_moons
from besnn.data.catalogue import DatasetInfo, available
from besnn.data.dataset import Dataset, Inputs, keep_classes, require_classes
from besnn.data.download import fetch
from besnn.data.encoding import rows_from_cells
from besnn.data.folder import StreamingFolder
from besnn.data.formats import FORMATS, Format
from besnn.data.images import ImageSpec, decode_image
from besnn.data.official import FileStatus, Status, data_root, verify
from besnn.data.outliers import made_up_outliers
from besnn.data.rows import Batch, Rows, rows_from_array
from besnn.data.sources import load, load_or_stream, stream

__all__ = [
    "FORMATS",
    "Batch",
    "Dataset",
    "DatasetInfo",
    "FileStatus",
    "Format",
    "ImageSpec",
    "Inputs",
    "Rows",
    "Status",
    "StreamingFolder",
    "available",
    "data_root",
    "decode_image",
    "digits",
    "fetch",
    "keep_classes",
    "load",
    "load_or_stream",
    "made_up_outliers",
    "require_classes",
    "rows_from_array",
    "rows_from_cells",
    "stream",
    "two_moons",
    "verify",
]
