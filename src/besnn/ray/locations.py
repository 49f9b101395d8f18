"""Where files lie: a path on this machine, or an address in any store that fsspec knows, such as `s3://bucket/folder`."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import fsspec  # type: ignore[import-untyped]  # has no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # nor here

from besnn.data.folder import list_files
from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.storage.files import atomic_path


@dataclass(frozen=True)
class Location:
    """A file or folder.

    Attributes:
        name: as the user wrote it, for messages.
        address: the same for all processes of a cluster, whatever their working folder is.
    """

    name: str
    address: str

    @classmethod
    def parse(cls, name: str) -> "Location":
        """The location that a path or an address names.

        >>> Location.parse("file:///tmp/scores").local
        PosixPath('/tmp/scores')
        >>> Location.parse("nowhere://x")
        Traceback (most recent call last):
        besnn.errors.InputError: address 'nowhere://x' cannot be used (Protocol not known: nowhere): ...
        """
        try:
            filesystem, path = fsspec.core.url_to_fs(name)
        except (ValueError, ImportError) as error:
            raise InputError(
                f"address {name!r} cannot be used ({one_line(error)}): give a path, or install what fsspec needs for it"
            ) from None
        except OSError as error:  # an archive that is not there
            raise DataError(f"{name} cannot be read ({one_line(error)})") from None
        return cls(name, path if isinstance(filesystem, LocalFileSystem) else name)

    @property
    def local(self) -> Path | None:
        """The path, for a location on this machine."""
        filesystem, path = fsspec.core.url_to_fs(self.address)
        return Path(path) if isinstance(filesystem, LocalFileSystem) else None

    @property
    def suffix(self) -> str:
        """The extension of its name, in small letters."""
        return PurePosixPath(self._open()[1]).suffix.lower()

    def __truediv__(self, name: str) -> "Location":
        return Location(_join(self.name, name), _join(self.address, name))

    def is_folder(self) -> bool:
        """Whether a folder lies there."""
        with self._errors():
            filesystem, path = self._open()
            return bool(filesystem.isdir(path))

    def is_file(self) -> bool:
        """Whether a file lies there."""
        with self._errors():
            filesystem, path = self._open()
            return bool(filesystem.isfile(path))

    def names(self) -> list[str]:
        """What a folder holds, at its first level; nothing where there is none."""
        with self._errors():
            filesystem, path = self._open()
            return sorted(PurePosixPath(entry).name for entry in filesystem.ls(path, detail=False)) if self.is_folder() else []

    def fingerprint(self) -> str:
        """A digest of what the store knows of a file without reading it (size, time of change), to tell whether it changed."""
        with self._errors():
            filesystem, path = self._open()
            return str(filesystem.ukey(path))

    def read(self) -> bytes:
        """A file's content."""
        with self._errors():
            filesystem, path = self._open()
            content: bytes = filesystem.cat_file(path)
            return content

    def write(self, content: bytes) -> None:
        """Puts a file in place, whole or not at all; stores beyond this machine show a file only when it is whole."""
        with self._errors("written"):
            if (local := self.local) is not None:
                with atomic_path(local) as partial:
                    partial.write_bytes(content)
            else:
                filesystem, path = self._open()
                filesystem.pipe_file(path, content)

    @contextlib.contextmanager
    def opened(self) -> Iterator["fsspec.spec.AbstractBufferedFile"]:
        """The file, open for reading at any place of it."""
        with self._errors():
            filesystem, path = self._open()
            with filesystem.open(path, "rb") as file:
                yield file

    @contextlib.contextmanager
    def as_local_file(self) -> Iterator[Path]:
        """The file itself, or a copy of it on this machine for as long as the block lasts."""
        if (local := self.local) is not None:
            yield local
            return
        with self.opened() as file, tempfile.NamedTemporaryFile(suffix=self.suffix) as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            try:
                yield Path(copy.name)
            except BesnnError as error:  # the user knows nothing of the copy
                raise type(error)(str(error).replace(copy.name, self.name)) from None

    def files(self) -> Iterator[tuple[str, int]]:
        """Every file under a folder, as its name within it and its size, in the order of `list_files`; or the file itself."""
        with self._errors():
            filesystem, root = self._open()
            if not filesystem.isdir(root):
                yield PurePosixPath(root).name, filesystem.size(root)
                return
            if (local := self.local) is not None:
                for file in list_files(local):
                    yield file.relative_to(local).as_posix(), file.stat().st_size
                return
            for parent, folders, files in filesystem.walk(root, detail=True):
                visible = {name: folders[name] for name in sorted(folders) if not name.startswith(".")}
                folders.clear()  # in place: this is what the walk goes on with
                folders.update(visible)
                inner = PurePosixPath(parent).relative_to(PurePosixPath(root))
                yield from ((str(inner / name), files[name]["size"]) for name in sorted(files) if not name.startswith("."))

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        filesystem, path = fsspec.core.url_to_fs(self.address)
        return filesystem, path

    @contextlib.contextmanager
    def _errors(self, verb: str = "read") -> Iterator[None]:
        """Turns what goes wrong with a store into one line; their libraries raise nearly anything."""
        try:
            yield
        except BesnnError:
            raise
        except Exception as error:
            if isinstance(error, OSError) or self.local is None:
                raise DataError(f"{self.name} cannot be {verb} ({one_line(error)})") from error
            raise


def _join(folder: str, name: str) -> str:
    """What lies in a folder; of a chain such as `zip://a::file://b` the first link is the folder.

    >>> _join("zip://photos::file:///a.zip", "1.png"), _join("./photos/", "1.png")
    ('zip://photos/1.png::file:///a.zip', 'photos/1.png')
    """
    if "://" not in folder:
        return str(Path(folder, name))
    first, chained, rest = folder.partition("::")
    return f"{first.rstrip('/')}/{name}{chained}{rest}"
