"""Our sandboxes as Inspect AI's `SandboxEnvironment`, so that its own checks can be run on them."""

from __future__ import annotations

from typing import Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)

from llm_sandbox_nb.sandbox import errors
from llm_sandbox_nb.sandbox.contract import Sandbox


class InspectSandbox(SandboxEnvironment):
    """One of our sandboxes, seen by Inspect."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

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
        await self.sandbox.write_file(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limits = SandboxEnvironmentLimits
        try:
            data = await self.sandbox.read_file(file, limit=limits.MAX_READ_FILE_SIZE)
        except errors.OutputLimitExceededError as error:
            raise OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Nothing: the fixture closes the sandbox."""
