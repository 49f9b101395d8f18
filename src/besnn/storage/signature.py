"""Signatures of model files: `MODEL.safetensors.sig` holds its HMAC-SHA256, which only holders of the key can make."""

import hmac
import os
from pathlib import Path

from besnn.errors import DataError, InputError
from besnn.storage.files import whole_file

KEY_VARIABLE = "BESNN_MODEL_KEY"
MIN_KEY_BYTES = 16
DIGEST_CHARACTERS = 64
_MAKE_KEY = "make one with `openssl rand -hex 32`"


def signature_path(model: Path) -> Path:
    """Return the path of a model file's signature."""
    return model.with_name(f"{model.name}.sig")


def model_key(path: str | os.PathLike[str] | None = None) -> bytes | None:
    """Return the key in a file: the one that `$BESNN_MODEL_KEY` names unless given, and None if the variable is not set."""
    path = os.environ.get(KEY_VARIABLE) if path is None else path
    return None if path is None else read_key(path)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Return the key in a file, without surrounding blanks; refuse one that is easy to guess."""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(f"cannot read the key file {str(path)!r} ({error.strerror}): {_MAKE_KEY}") from None
    if len(key) < MIN_KEY_BYTES:
        raise InputError(f"the key in {path} is shorter than {MIN_KEY_BYTES} bytes: {_MAKE_KEY}")
    return key


def write_signature(model: Path, content: bytes, key: bytes) -> Path:
    """Sign the content of a model file, and return the signature's path."""
    path = signature_path(model)
    with whole_file(path) as partial:
        partial.write_text(f"{_digest(content, key)}\n")
    return path


def check_signature(model: Path, content: bytes, key: bytes | None) -> None:
    """Refuse the content of a model file unless its signature is valid; without a key, any content passes."""
    if key is None:
        return
    path = signature_path(model)
    remedy = "get the signed model again; if you trust this one, run `besnn sign` with the key"
    if not path.is_file():  # opening a pipe would wait forever
        raise DataError(f"{model} has no signature {path.name}, which the model key asks for: {remedy}")
    try:
        with path.open("rb") as file:
            found = file.read(DIGEST_CHARACTERS)
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}): {remedy}") from None
    if not hmac.compare_digest(found, _digest(content, key).encode()):
        raise DataError(f"{model} is not what {path.name} was made of with this key: {remedy}")


def _digest(content: bytes, key: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()
