"""Locations of files: paths on this machine, and URLs of any store that fsspec knows, such as `s3://bucket/folder`."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import fsspec  # type: ignore[import-untyped]  # has no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # has no types

from besnn.data.folder import list_files
from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.storage.files import atomic_path


@dataclass(frozen=True)
class Location:
    """A file or folder: its name as the user wrote it, and a path or URL that means the same in every process of a cluster."""

    name: str
    url: str

    @classmethod
    def parse(cls, name: str) -> "Location":
        """Return the location of a path or URL."""
        try:
            filesystem, path = fsspec.core.url_to_fs(name)
        except (ValueError, ImportError) as error:
            remedy = "give a path, or install what fsspec needs for it"
            raise InputError(f"URL {name!r} cannot be used ({one_line(error)}): {remedy}") from None
        except OSError as error:  # the URL points into an archive that does not exist
            raise DataError(f"{name} cannot be read ({one_line(error)})") from None
        return cls(name, path if isinstance(filesystem, LocalFileSystem) else name)

    @property
    def local(self) -> Path | None:
        """The path of a location on this machine; None for any other."""
        filesystem, path = fsspec.core.url_to_fs(self.url)
        return Path(path) if isinstance(filesystem, LocalFileSystem) else None

    @property
    def suffix(self) -> str:
        """The extension in lower case."""
        return PurePosixPath(fsspec.core.url_to_fs(self.url)[1]).suffix.lower()

    def __truediv__(self, name: str) -> "Location":
        return Location(_join(self.name, name), _join(self.url, name))

    def is_folder(self) -> bool:
        """Whether the location is a folder that exists."""
        with self._store() as (filesystem, path):
            return bool(filesystem.isdir(path))

    def is_file(self) -> bool:
        """Whether the location is a file that exists."""
        with self._store() as (filesystem, path):
            return bool(filesystem.isfile(path))

    def names(self) -> list[str]:
        """Return the sorted names of a folder's entries; none if there is no such folder."""
        with self._store() as (filesystem, path):
            entries = filesystem.ls(path, detail=False) if filesystem.isdir(path) else []
            return sorted(PurePosixPath(entry).name for entry in entries)

    def fingerprint(self) -> str:
        """Return a digest of what the store knows about a file without reading it, such as its size and time of change."""
        with self._store() as (filesystem, path):
            return str(filesystem.ukey(path))

    def read(self) -> bytes:
        """Return the content of a file."""
        with self._store() as (filesystem, path):
            content: bytes = filesystem.cat_file(path)
            return content

    def write(self, content: bytes) -> None:
        """Write a file, which appears whole or not at all (remote stores only show a file once it is whole)."""
        with self._store("written") as (filesystem, path):
            if (local := self.local) is None:
                filesystem.pipe_file(path, content)
            else:
                with atomic_path(local) as partial:
                    partial.write_bytes(content)

    @contextlib.contextmanager
    def opened(self) -> Iterator["fsspec.spec.AbstractBufferedFile"]:
        """Open a file for reading."""
        with self._store() as (filesystem, path), filesystem.open(path, "rb") as file:
            yield file

    @contextlib.contextmanager
    def as_local_file(self) -> Iterator[Path]:
        """Yield the path of a file on this machine, or of a temporary copy of any other file."""
        if (local := self.local) is not None:
            yield local
            return
        with tempfile.NamedTemporaryFile(suffix=self.suffix) as copy:
            with self._store() as (filesystem, path):
                filesystem.get_file(path, copy.name)
            try:
                yield Path(copy.name)
            except BesnnError as error:  # name the file that the user knows
                raise type(error)(str(error).replace(copy.name, self.name)) from None

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the name within the folder and the size of every file, in the order of `list_files`; or of the file itself."""
        with self._store() as (filesystem, root):
            if not filesystem.isdir(root):
                yield PurePosixPath(root).name, filesystem.size(root)
            elif (local := self.local) is not None:
                for file in list_files(local):
                    yield file.relative_to(local).as_posix(), file.stat().st_size
            else:
                found = filesystem.find(root, detail=True)
                sizes = {PurePosixPath(path).relative_to(root): info["size"] for path, info in found.items()}
                for path in sorted(sizes, key=lambda path: (path.parent.parts, path.name)):
                    if not any(part.startswith(".") for part in path.parts):
                        yield str(path), sizes[path]

    @contextlib.contextmanager
    def _store(self, verb: str = "read") -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
        """Yield the filesystem and the path within it; turn its errors into one line (remote ones raise nearly anything)."""
        try:
            yield fsspec.core.url_to_fs(self.url)
        except BesnnError:
            raise
        except Exception as error:
            if isinstance(error, OSError) or self.local is None:
                raise DataError(f"{self.name} cannot be {verb} ({one_line(error)})") from error
            raise


def _join(folder: str, name: str) -> str:
    """Return the path or URL of a name in a folder; in a chain (`zip://photos::file:///a.zip`) the first link is the folder."""
    if "://" not in folder:
        return str(Path(folder, name))
    first, chain, rest = folder.partition("::")
    return f"{first.rstrip('/')}/{name}{chain}{rest}"
