"""Sandboxes for Inspect AI: `inspect eval task.py --sandbox llm-sandbox-nb`, or `:docker`, `:bubblewrap`.

Inspect finds this module by its entry point. A task can also set options of the sandbox:

    Task(..., sandbox=SandboxEnvironmentSpec("llm-sandbox-nb", SandboxConfig(isolation="docker", profile="strict")))
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from llm_sandbox_nb.sandbox import errors
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.open import open_sandbox

NAME = "llm-sandbox-nb"


class SandboxConfig(BaseModel):
    """Options of `open_sandbox` for the sandbox of a sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    isolation: str = "auto"
    profile: str = "standard"
    image: str | None = None
    network: str | None = None
    allow: tuple[str, ...] = ()


@sandboxenv(name=NAME)
class InspectSandbox(SandboxEnvironment):
    """Adapter from a sandbox of this package to Inspect."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read the configuration from a log."""
        return SandboxConfig.model_validate(config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open the sandbox of a sample.

        Raises:
            ValueError: if the named isolation does not exist.
            SandboxError: if no sandbox can be opened.
        """
        options = _config_of(config)
        sandbox = await open_sandbox(**options.model_dump())
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Close the sandboxes of a sample."""
        for environment in environments.values():
            if isinstance(environment, cls):
                await environment.sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Execute a program and return its result."""
        stdin = input.encode() if isinstance(input, str) else input or b""
        try:
            result = await self.sandbox.exec(cmd, stdin=stdin, cwd=cwd, env=env, user=user, timeout=timeout)
        except errors.SandboxUserError as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        if result.timed_out or result.exit_code is None:
            raise TimeoutError(f"{cmd} did not end within {timeout} seconds.")
        if result.exit_code == 126:
            raise PermissionError(f"{cmd[0]} may not be executed.")
        stdout, stderr = (part.decode("utf-8", "replace") for part in (result.stdout, result.stderr))
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and create missing parent folders."""
        await self.sandbox.write_file(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, up to Inspect's limit."""
        limits = SandboxEnvironmentLimits
        try:
            data = await self.sandbox.read_file(file, limit=limits.MAX_READ_FILE_SIZE)
        except errors.OutputLimitExceededError as error:
            raise OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data


def _config_of(config: SandboxEnvironmentConfigType | None) -> SandboxConfig:
    """Return the configuration. The part after `llm-sandbox-nb:` is an isolation, which Inspect turns into a path."""
    match config:
        case None:
            return SandboxConfig()
        case SandboxConfig():
            return config
        case str() if (name := PurePath(config).name) in ("auto", *ISOLATIONS):
            return SandboxConfig(isolation=name)
        case BaseModel():
            return SandboxConfig.model_validate(config.model_dump())
    names = ", ".join(("auto", *ISOLATIONS))
    raise ValueError(
        f"There is no isolation {PurePath(str(config)).name[:80]}: write --sandbox {NAME}:NAME with one of {names}."
    )
