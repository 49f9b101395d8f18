"""`besnn serve`: a model as an HTTP service with a page to try it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import (
    DATA_HELP,
    Address,
    DataDir,
    Device,
    Engine,
    Model,
    Quiet,
    Where,
    check_engine,
    complete_data,
    option,
)
from besnn.cli.output import note

if TYPE_CHECKING:
    from besnn.detector import Detector
    from besnn.serve.examples import Example


def serve(
    model: Model,
    host: Annotated[str, option("ADDRESS", "The address to listen on; the default is for this machine only.")] = "127.0.0.1",
    port: Annotated[int, option("N", "The port to listen on; 0 takes any free one.", min=0, max=65535)] = 8000,
    workers: Annotated[int, option("N", "Processes, each with the model; one that dies is replaced.", min=1)] = 1,
    token_file: Annotated[Path | None, option("FILE", "A file with the token that clients must send.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on a public address without a token: anyone may use the service.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, option("NAME", "Another accepted host name, such as a proxy's; repeatable.")
    ] = None,
    examples: Annotated[
        str | None,
        option(
            "DATA",
            f"Known data to choose the page's examples from: {DATA_HELP}. (default: the training set, if it is a toy set)",
            autocompletion=complete_data,
        ),
    ] = None,
    data_dir: DataDir = None,
    drift_state: Annotated[Path | None, option("FILE", "A file that keeps the drift monitor across restarts.")] = None,
    overrides: Annotated[
        list[str] | None, option("FIELD=VALUE", "Change a limit, such as deadline_seconds=5; repeatable.", "--set")
    ] = None,
    device: Device = "auto",
    engine: Where = Engine.LOCAL,
    address: Address = None,
    replicas: Annotated[int | None, option("N", "Processes on Ray, each with the model. (default: 1)", min=1)] = None,
    max_replicas: Annotated[int | None, option("N", "Most processes under load. (default: --replicas)", min=1)] = None,
    gpus_per_replica: Annotated[float | None, option("N", "GPUs per process, such as 0.5. (default: 0)", min=0)] = None,
    quiet: Quiet = False,
) -> None:
    """Answer requests over HTTP with a model, until stopped.

    A page to try it is at `/`. POST /v1/predict takes JSON arrays and images, /v2 speaks the Open Inference Protocol, /metrics
    is for Prometheus, and /openapi.json describes them. A cluster at --address keeps serving after this command has ended; run
    the command again with another model to replace the model without downtime.
    """
    from besnn.cli.loading import load_detector, require_model

    require_model(model)
    from besnn.serve.settings import access_settings, parse_settings, served_name

    names = "--address", "--replicas", "--max-replicas", "--gpus-per-replica"
    check_engine(engine, "serve", device, dict(zip(names, (address, replicas, max_replicas, gpus_per_replica), strict=True)))
    _require_extra()
    access = access_settings(host, token_file, insecure, allow_host or [])
    settings = parse_settings({"model_name": served_name(model), "drift_state": drift_state, **access}, overrides or [])
    detector = load_detector(model, calibrated=True, device=device if engine is Engine.LOCAL else "cpu")
    chosen = _examples(detector, examples, data_dir)
    if engine is Engine.RAY:
        from besnn.ray.serving import Replicas, serve_on_ray

        count = Replicas(replicas or 1, max_replicas, gpus_per_replica or 0.0)
        serve_on_ray(model, settings, chosen, host, port, count, address, lambda text: note(text, quiet=quiet))
        return
    from besnn.serve.server import listen, run, url_of

    with listen(host, port) as listener:
        note(f"serving {model} at {url_of(listener)} (Ctrl-C stops it)", quiet=quiet)
        run(detector, model, settings, chosen, listener, workers)


def _require_extra() -> None:
    from importlib import import_module

    from besnn.errors import InputError

    try:
        for module in ("fastapi", "httptools", "prometheus_client", "python_multipart", "uvicorn"):
            import_module(module)
    except ModuleNotFoundError:
        raise InputError("the service needs the extra `serve`: pip install 'besnn[serve]'") from None


def _examples(detector: "Detector", spec: str | None, data_dir: Path | None) -> "list[Example]":
    """Choose examples from the named data, or from the training set if that is a toy set."""
    from besnn.cli.loading import load_known
    from besnn.data import available
    from besnn.serve.examples import choose_examples

    source = "" if detector.recipe is None else detector.recipe.data.source.partition(":")[0]
    if spec is None and source in {info.name for info in available() if not info.files}:
        spec = f"{source}:test"  # the built-in set, whatever folders there are
    return [] if spec is None else choose_examples(detector, load_known(detector, spec, label=None, data_dir=data_dir).inputs)
