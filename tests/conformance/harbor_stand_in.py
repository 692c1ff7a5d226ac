"""A stand-in for the parts of Harbor that an environment uses, with the signatures of Harbor 0.26.0.

Harbor needs Python 3.12; the tests also run with 3.11. Only names, signatures and the effects that the environment
relies on are Harbor's; `SIGNATURES` lists what Harbor calls.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

VERSION = "0.26.0"
SIGNATURES = {
    "start": ["force_build"],
    "stop": ["delete"],
    "upload_file": ["source_path", "target_path"],
    "upload_dir": ["source_dir", "target_dir"],
    "download_file": ["source_path", "target_path"],
    "download_dir": ["source_dir", "target_dir"],
    "exec": ["command", "cwd", "env", "timeout_sec", "user"],
    "_validate_definition": [],
}
"""Parameters of the abstract methods of `BaseEnvironment`, which Harbor also gives by name."""


class NetworkMode(StrEnum):
    NO_NETWORK = "no-network"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"


@dataclass
class NetworkPolicy:
    network_mode: NetworkMode = NetworkMode.PUBLIC
    allowed_hosts: list[str] = field(default_factory=list)


@dataclass
class EnvironmentConfig:
    docker_image: str | None = None
    workdir: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    build_timeout_sec: float = 600.0
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class ExecResult:
    return_code: int
    stdout: str | None = None
    stderr: str | None = None


@dataclass
class Capabilities:
    disable_internet: bool = False
    network_allowlist: bool = False
    network_allowlist_hostnames: bool = False


@dataclass
class ResourceCapabilities:
    cpu_limit: bool = False
    memory_limit: bool = False
    fractional_cpus: bool = False


class SandboxBuildFailedError(Exception):
    pass


class BaseEnvironment(ABC):
    """`harbor.environments.base.BaseEnvironment`, as far as a subclass sees it."""

    def __init__(
        self,
        environment_dir: Path,
        environment_name: str,
        session_id: str,
        trial_paths: object,
        task_env_config: EnvironmentConfig,
        logger: logging.Logger | None = None,
        *args: Any,
        persistent_env: dict[str, str] | None = None,
        mounts: list[dict[str, Any]] | None = None,
        auto_mounts: list[dict[str, Any]] | None = None,
        network_policy: NetworkPolicy | None = None,
        **kwargs: Any,
    ) -> None:
        self.environment_dir, self.environment_name = environment_dir, environment_name
        self.session_id, self.trial_paths, self.task_env_config = session_id, trial_paths, task_env_config
        self.default_user: str | int | None = None
        self._persistent_env = persistent_env or {}
        self._mounts = [*(auto_mounts or []), *(mounts or [])]
        self.network_policy = network_policy or NetworkPolicy()
        self._callbacks: tuple[Callable[[str, str], Awaitable[None]], ...] = ()
        self.logger = logger or logging.getLogger("harbor")
        assert self.capabilities is not None
        self._validate_definition()

    @property
    def environment_id(self) -> str:
        content = [path.read_bytes() for path in sorted(self.environment_dir.rglob("*")) if path.is_file()]
        return hashlib.sha256(b"".join(content)).hexdigest()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def _effective_cpus(self) -> float | None:
        return self.task_env_config.cpus

    @property
    def _effective_memory_mb(self) -> int | None:
        return self.task_env_config.memory_mb

    @property
    def _effective_storage_mb(self) -> int | None:
        return self.task_env_config.storage_mb

    def _startup_env(self) -> dict[str, str]:
        return {**self.task_env_config.env, **self._persistent_env}

    def _merge_env(self, env: dict[str, str] | None) -> dict[str, str] | None:
        return {**self._persistent_env, **(env or {})} or None

    def _resolve_user(self, user: str | int | None) -> str | int | None:
        return user if user is not None else self.default_user

    def _output_callback(self) -> Callable[[str, str], Awaitable[None]] | None:
        return self._callbacks[-1] if self._callbacks else None

    @contextmanager
    def scoped_output_callback(self, callback: Callable[[str, str], Awaitable[None]]) -> Iterator[None]:
        self._callbacks = (callback,)
        yield
        self._callbacks = ()

    def _mount_targets(self, *, writable_only: bool = False) -> list[str]:
        return [mount["target"] for mount in self._mounts if not (writable_only and mount.get("read_only"))]

    async def ensure_dirs(self, dirs: list[str], *, chmod: bool = True) -> ExecResult | None:
        if not dirs:
            return None
        names = shlex.join(dirs)
        return await self.exec(f"mkdir -p {names} && chmod 777 {names}", user="root")

    async def _upload_environment_dir_after_start(self) -> None:
        prebuilt = self.task_env_config.docker_image and not (self.environment_dir / "Dockerfile").exists()
        if prebuilt and any(self.environment_dir.iterdir()):
            workdir = self.task_env_config.workdir or (await self.exec("pwd")).stdout.strip()  # type: ignore[union-attr]
            await self.upload_dir(self.environment_dir, workdir)

    @staticmethod
    @abstractmethod
    def type() -> str: ...

    @abstractmethod
    def _validate_definition(self) -> None: ...

    @abstractmethod
    async def start(self, force_build: bool) -> None: ...

    @abstractmethod
    async def stop(self, delete: bool) -> None: ...

    @abstractmethod
    async def upload_file(self, source_path: Path | str, target_path: str) -> None: ...

    @abstractmethod
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None: ...

    @abstractmethod
    async def download_file(self, source_path: str, target_path: Path | str) -> None: ...

    @abstractmethod
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None: ...

    @abstractmethod
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult: ...


def require_definition(environment_dir: Path, *, docker_image: str | None = None) -> None:
    if not docker_image and not (environment_dir / "Dockerfile").exists():
        raise FileNotFoundError(f"{environment_dir} has no environment definition.")


def use_prebuilt(environment_dir: Path, *, docker_image: str | None, force_build: bool) -> bool:
    return bool(docker_image) and not (force_build and (environment_dir / "Dockerfile").exists())


def modules() -> dict[str, ModuleType]:
    """The modules of Harbor that an environment imports, for `sys.modules`."""
    contents: dict[str, dict[str, Any]] = {
        "harbor": {},
        "harbor.environments": {},
        "harbor.environments.base": {
            "BaseEnvironment": BaseEnvironment,
            "ExecResult": ExecResult,
            "SandboxBuildFailedError": SandboxBuildFailedError,
        },
        "harbor.environments.capabilities": {
            "EnvironmentCapabilities": Capabilities,
            "EnvironmentResourceCapabilities": ResourceCapabilities,
        },
        "harbor.environments.definition": {
            "require_agent_environment_definition": require_definition,
            "should_use_prebuilt_docker_image": use_prebuilt,
        },
    }
    made = {}
    for name, content in contents.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(content)
    assert not set(made) & set(sys.modules)
    return made
