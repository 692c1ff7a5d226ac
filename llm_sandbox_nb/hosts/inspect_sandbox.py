"""Sandboxes for Inspect AI: `inspect eval task.py --sandbox llm-sandbox-nb`, or `llm-sandbox-nb:ISOLATION`.

Inspect finds this module by an entry point of this package. A task can also set options of the sandbox:

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

from llm_sandbox_nb.hosts.inspect_record import MAX_RECORDED_BYTES, SampleRecord
from llm_sandbox_nb.sandbox import errors
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.trajectory.run_folder import RUNS

NAME = "llm-sandbox-nb"


class SandboxConfig(BaseModel):
    """Options for the sandbox of a sample, as `open_sandbox` takes them, and for the record of the sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    isolation: str = "auto"
    profile: str = "standard"
    image: str | None = None
    network: str | None = None
    allow: tuple[str, ...] = ()
    record: bool = True
    """True to record each call, with the files after it, in a run folder that a notebook can open and rewind."""
    output_dir: str = RUNS
    """Parent of the run folders. A relative path begins in the working directory of Inspect."""


@sandboxenv(name=NAME)
class InspectSandbox(SandboxEnvironment):
    """Sandbox of this package in the form that Inspect uses."""

    def __init__(self, sandbox: Sandbox, record: SampleRecord | None = None) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.record = record

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Make the configuration from its form in a log."""
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
        sandbox = await open_sandbox(**options.model_dump(exclude={"record", "output_dir"}))
        record = None
        try:
            if options.record:
                record = await SampleRecord.begin(sandbox, options.output_dir, task_name)
        except BaseException:  # Inspect closes only a sandbox that this method has returned
            await sandbox.close()
            raise
        return {"default": cls(sandbox, record)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            if isinstance(environment, cls):
                try:
                    if environment.record is not None:
                        await environment.record.finish(interrupted=interrupted)
                finally:
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
        stdin = input.encode() if isinstance(input, str) else input or b""
        if self.record is not None:
            await self.record.settle()
        try:
            result = await self.sandbox.exec(cmd, stdin=stdin, cwd=cwd, env=env, user=user, timeout=timeout)
        except errors.SandboxUserError as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        if self.record is not None:
            typed = stdin[:MAX_RECORDED_BYTES].decode("utf-8", "replace") or None
            given = {"stdin": typed, "cwd": cwd, "user": user, "timeout": timeout}
            await self.record.executed(cmd, given, result)
        if result.timed_out or result.exit_code is None:
            raise TimeoutError(f"{cmd} did not end within {timeout} seconds.")
        # A program may exit with code 126 too. The sandbox writes this message if it cannot execute the file.
        if result.exit_code == 126 and result.stderr == f"{cmd[0]}: Permission denied\n".encode():
            raise PermissionError(f"{cmd[0]} may not be executed.")
        stdout, stderr = (part.decode("utf-8", "replace") for part in (result.stdout, result.stderr))
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and create missing parent folders."""
        data = contents.encode() if isinstance(contents, str) else contents
        if self.record is not None:
            await self.record.settle()
        await self.sandbox.write_file(file, data)
        if self.record is not None:
            await self.record.written(file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file. A file that is larger than Inspect's limit raises Inspect's `OutputLimitExceededError`."""
        limits = SandboxEnvironmentLimits
        try:
            data = await self.sandbox.read_file(file, limit=limits.MAX_READ_FILE_SIZE)
        except errors.OutputLimitExceededError as error:
            raise OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data


def _config_of(config: SandboxEnvironmentConfigType | None) -> SandboxConfig:
    """Return the configuration. Inspect passes the text after `llm-sandbox-nb:`, which is the isolation, as a path."""
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
