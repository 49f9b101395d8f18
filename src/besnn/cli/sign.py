"""`besnn sign`: a signature beside a model file, by which commands and services tell it from a forged one."""

from pathlib import Path
from typing import Annotated

from besnn.cli.options import Json, Model, Quiet, option
from besnn.cli.output import announce


def sign(
    model: Model,
    key: Annotated[Path, option("FILE", "A file with the secret key, such as `openssl rand -hex 32` prints.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Sign a model file with a secret key.

    The signature is MODEL.sig. If the environment variable BESNN_MODEL_KEY names the key file, every command and the service
    refuse a model without a valid signature. Sign a model again after training or calibrating it.
    """
    from besnn.cli.loading import require_model

    require_model(model)
    from besnn.storage.signature import read_key, write_signature
    from besnn.storage.tensor_file import MODEL_FILE, parse_tensor_file

    secret, content = read_key(key), model.read_bytes()
    parse_tensor_file(content, MODEL_FILE, model)  # no signature for a damaged file
    path = write_signature(model, content, secret)
    announce({"model": str(model), "signature": str(path)}, [f"wrote {path}"], as_json=json, quiet=quiet)
