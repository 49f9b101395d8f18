"""Data sources, file formats, toy sets, made-up outliers and streaming readers."""

from besnn.data.catalogue import DatasetInfo, available
from besnn.data.dataset import Dataset, Inputs, keep_classes, require_classes
from besnn.data.fetching import fetch
from besnn.data.folder import StreamingFolder
from besnn.data.images import ImageSpec, decode_image
from besnn.data.outliers import made_up_outliers
from besnn.data.sources import load, load_or_stream
from besnn.data.store import FileStatus, Status, data_root, verify
from besnn.data.streaming import Batch, stream
from besnn.data.toys import digits, two_moons

__all__ = [
    "Batch",
    "Dataset",
    "DatasetInfo",
    "FileStatus",
    "ImageSpec",
    "Inputs",
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
    "stream",
    "two_moons",
    "verify",
]
