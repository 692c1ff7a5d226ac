"""docker-py, whole and from one place; to be imported inside functions, because it takes a while.

Threads that begin with different parts of it at once get in each other's way: one has the lock of `docker`, another
that of `docker.context`, and Python gives one of them half a module. Here all of them wait for the same lock.
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
