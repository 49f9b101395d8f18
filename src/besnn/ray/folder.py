"""Folders of images as a source. Only names travel: who scores the images decodes them, in threads of its own."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from besnn.data import Batch, ImageSpec, decode_image
from besnn.data.folder import image_batches, writable
from besnn.data.images import Pixels, read_image
from besnn.errors import BesnnError, DataError
from besnn.ray.locations import Location
from besnn.ray.source import Row, Span


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """All files under a folder, or a single image.

    Attributes:
        chunk_rows: images a chunk.
        batch_rows: images a batch; it divides that.
        location: where they lie.
        is_folder: whether that is a folder.
        image: the form that images are brought to.
        rows: images in all.
        digest: over their names and sizes.
    """

    chunk_rows: int
    batch_rows: int
    location: Location
    is_folder: bool
    image: ImageSpec
    rows: int
    digest: str

    @classmethod
    def open(cls, location: Location, image: ImageSpec, *, chunk_rows: int, batch_rows: int) -> "FolderSource":
        """Lists the folder once, to know what is in it."""
        rows, sha = 0, hashlib.sha256()
        for name, size in location.files():
            rows += 1
            sha.update(os.fsencode(f"{name}\t{size}\n"))
        if not rows:
            raise DataError(f"{location.name} holds no files: give a folder with images")
        return cls(
            chunk_rows=chunk_rows,
            batch_rows=batch_rows,
            location=location,
            is_folder=location.is_folder(),
            image=image,
            rows=rows,
            digest=sha.hexdigest(),
        )

    def fingerprint(self) -> str:
        """The digest of names and sizes; what is in the files is not read beforehand."""
        return self.digest

    def spans(self) -> list[Span]:
        """One: listing names is quick."""
        return [(0, None)]

    def read(self, span: Span) -> Iterator[Row]:
        """All chunks."""
        names = (os.fsencode(name) for name, _ in self.location.files())  # which need not be UTF-8
        for chunk, names_of_chunk in enumerate(iter(lambda: list(islice(names, self.chunk_rows)), [])):
            yield {"chunk": chunk, "names": names_of_chunk}

    def batches(self, row: Row) -> Iterator[Batch]:
        """The images of a chunk, decoded."""
        names = [os.fsdecode(name) for name in row["names"]]
        return image_batches(((writable(name), partial(self._pixels, name)) for name in names), self.image, self.batch_rows)

    def _pixels(self, name: str) -> Pixels:
        file = self.location / name if self.is_folder else self.location
        if (path := file.local) is not None:
            return read_image(path, self.image, file.name)
        try:
            content = file.read()
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            raise BesnnError(str(error)) from error  # the store's fault and not the image's: nothing to note down for good
        return decode_image(content, self.image, file.name)
