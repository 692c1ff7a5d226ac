"""All names of docker-py that this package uses. Import this module inside functions, because docker-py loads slowly.

No other module imports docker-py. If two threads imported different parts of docker-py at the same time, each could
wait for an import lock of the other (of `docker` and of `docker.context`). Python ends such a deadlock, but one thread
then gets a half-initialized module.
"""

from __future__ import annotations

from docker import DockerClient
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.tls import TLSConfig
from docker.types import LogConfig, Ulimit
from docker.utils import kwargs_from_env, parse_repository_tag

__all__ = [
    "APIError",
    "ContextAPI",
    "DockerClient",
    "DockerException",
    "ImageNotFound",
    "LogConfig",
    "NotFound",
    "TLSConfig",
    "Ulimit",
    "kwargs_from_env",
    "parse_repository_tag",
]
