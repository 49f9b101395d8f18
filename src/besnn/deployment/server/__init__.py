"""The HTTP service around a detector: `create_app` makes it, `besnn.deployment.server.launch` runs it."""

from besnn.deployment.server.app import create_app
from besnn.deployment.server.settings import Settings

__all__ = ["Settings", "create_app"]
