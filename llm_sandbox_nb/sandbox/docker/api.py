"""The names of docker-py that this package uses. Import this module inside functions, because docker-py loads slowly.

All imports of docker-py are in this module. If two threads first import different parts of docker-py at the same time,
they can deadlock on the import locks of `docker` and `docker.context`. Python then returns a half-initialized module.
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
