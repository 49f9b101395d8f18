"""The service put together. Making it touches neither the process nor the network: that is `launch`'s business."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from besnn.detector import Detector
from besnn.serve.examples import Example, unknown_examples
from besnn.serve.observation import Observation
from besnn.serve.openapi import describe_components, problems
from besnn.serve.page import add_page
from besnn.serve.problems import CatchUnexpected, add_problem_handlers
from besnn.serve.protocol import infer_request_model
from besnn.serve.security import SecurityHeaders, same_origin, token_required
from besnn.serve.service import Service
from besnn.serve.settings import Settings
from besnn.serve.v1 import v1_router
from besnn.serve.v2 import health_router, v2_router
from besnn.version import __version__


def create_app(detector: Detector, settings: Settings | None = None, examples: Sequence[Example] = ()) -> FastAPI:
    """The service as an ASGI application.

    Args:
        detector: calibrated.
        settings: the defaults unless given.
        examples: inputs for people to try, see `choose_examples`; unknown ones are made where none are given.
    """
    service = Service(detector, settings or Settings())
    settings = service.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="besnn",
        version=__version__,
        description='A classifier that says "I don\'t know this", with a calibrated false-alarm rate.',
        docs_url=None,  # its page loads scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(CatchUnexpected)
    app.add_middleware(SecurityHeaders, allowed_hosts=settings.allowed_hosts)
    app.add_middleware(Observation, metrics=service.metrics)
    add_problem_handlers(app)
    guards = [Depends(same_origin)]
    if settings.token is not None:
        guards.append(Depends(token_required(settings.token)))
    refusals = problems(401, 403, 421, 422, 500)
    infer_request = infer_request_model(service.reader)

    @app.get(
        "/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse, dependencies=guards, responses=refusals
    )
    def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(health_router(), responses=problems(421, 500))
    app.include_router(v1_router(service, examples or unknown_examples(detector)), dependencies=guards, responses=refusals)
    app.include_router(v2_router(service, infer_request), dependencies=guards, responses=refusals)
    add_page(app)
    describe_components(app, service.reader.request, infer_request)
    return app
