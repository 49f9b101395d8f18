"""The service as an ASGI application: middleware, guards, routes and the page. Making it has no side effects."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from besnn.detector import Detector
from besnn.serve.examples import Example, unknown_examples
from besnn.serve.middleware import Frame, ProblemBody, answer_to
from besnn.serve.problems import Problem, describe_error, problem_responses
from besnn.serve.security import same_origin, token_required
from besnn.serve.service import Service
from besnn.serve.settings import Settings
from besnn.serve.v1 import v1_router
from besnn.serve.v2 import health_router, infer_request_model, model_router, server_router
from besnn.version import __version__

STATIC = Path(__file__).parent / "static"


def create_app(detector: Detector, settings: Settings | None = None, examples: Sequence[Example] = ()) -> FastAPI:
    """Make the service around a calibrated detector. Its examples are made-up unknown inputs unless given.

    >>> import torch
    >>> from besnn.model import Preprocessing, WrappedNetwork
    >>> network = WrappedNetwork(torch.nn.Identity(), num_classes=2)  # the inputs are the logits
    >>> detector = Detector(network, Preprocessing((2,), torch.zeros(2), torch.ones(2)), ["left", "right"])
    >>> known = [[step / 2, 0.0] for step in range(9, 29)]
    >>> app = create_app(detector.calibrate(known), Settings(model_name="sides"))
    >>> [path for path in app.openapi()["paths"] if path.startswith("/v1")]
    ['/v1/predict', '/v1/explain', '/v1/model', '/v1/examples', '/v1/drift']
    """
    service = Service(detector, settings or Settings())
    settings = service.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.reader.start()
        yield
        await service.close()

    app = FastAPI(
        title="besnn",
        version=__version__,
        description='A classifier that says "I don\'t know this", with a calibrated false-alarm rate.',
        docs_url=None,  # its page loads scripts from other hosts
        redoc_url=None,
        openapi_url=None,  # the route below needs the token: the description tells the model's name and shape
        redirect_slashes=False,  # a redirect would repeat the Host that the caller chose
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(Frame, metrics=service.metrics, allowed_hosts=settings.allowed_hosts)
    _answer_errors_with_problems(app)
    guards = [Depends(same_origin)]
    if settings.token is not None:
        guards.append(Depends(token_required(settings.token)))
    refusals = problem_responses(401, 403, 421, 422, 500)
    infer_request = infer_request_model(service.reader)

    @app.get("/metrics", summary="For Prometheus", response_class=PlainTextResponse, dependencies=guards, responses=refusals)
    def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", include_in_schema=False, dependencies=guards)
    async def description() -> JSONResponse:
        return JSONResponse(app.openapi())

    app.include_router(health_router(service), responses=problem_responses(421, 500, 503))
    app.include_router(v1_router(service, examples or unknown_examples(detector)), dependencies=guards, responses=refusals)
    for router in (server_router(), model_router(service, infer_request)):
        app.include_router(router, dependencies=guards, responses=refusals)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    _describe_models(app, ProblemBody, service.reader.request, infer_request)
    return app


def _answer_errors_with_problems(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def _own(_: Request, problem: Problem) -> Response:
        return answer_to(problem)

    @app.exception_handler(RequestValidationError)
    async def _parameter(_: Request, error: RequestValidationError) -> Response:
        return answer_to(Problem(422, "parameter-invalid", describe_error(error.errors()[0])))

    @app.exception_handler(HTTPException)
    async def _framework(_: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        code = status.phrase.lower().replace(" ", "-")
        return answer_to(Problem(status, code, f"{status.phrase}: see /openapi.json", error.headers))


def _describe_models(app: FastAPI, *models: type[BaseModel]) -> None:
    """Add models that the framework does not find by itself to an app's OpenAPI description, which it caches."""
    schemas = app.openapi()["components"]["schemas"]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {**schema.pop("$defs", {}), model.__name__: schema}
