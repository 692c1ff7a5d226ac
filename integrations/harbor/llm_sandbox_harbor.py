"""Harbor tasks in the Docker sandboxes of llm-sandbox-nb: `harbor run --env llm_sandbox_harbor:LLMSandboxEnvironment`.

Written against `BaseEnvironment` of Harbor 0.26.0. Harbor needs Python 3.12 or later.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)

from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.open import open_sandbox

DOCKERFILE, COMPOSE_FILE = "Dockerfile", "docker-compose.yaml"
NETWORKS = {"public": "public", "no-network": "none", "allowlist": "allow"}
"""Network of the sandbox for each network mode of Harbor. `public` never reaches the host or private addresses."""
MAX_PROCESSES = 4096
MAX_FILE_BYTES = 1024**3
"""Bytes of the largest file that is downloaded."""
_SHOWN_BUILD_CHARACTERS = 2000


class LLMSandboxEnvironment(BaseEnvironment):
    """Environment of a trial: a hardened container with the task's image, limits and network.

    The profile is `standard`, because Harbor writes to folders that belong to root.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sandbox: Sandbox | None = None
        self._workdir = "/"
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "llm-sandbox-nb"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE).exists():
            raise ValueError(
                f"{self.type()} runs one container: {COMPOSE_FILE} of this task needs --env docker."
            )
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )

    @property
    def sandbox(self) -> Sandbox:
        """The open sandbox. Raises RuntimeError before `start` and after `stop`."""
        if self._sandbox is None:
            raise RuntimeError("The environment does not run: call start() first.")
        return self._sandbox

    async def start(self, force_build: bool) -> None:
        """Start the container, after a build of the task's Dockerfile if the task names no image.

        Raises:
            SandboxBuildFailedError: if the Dockerfile cannot be built.
        """
        image = await self._image(force_build)
        policy, memory, disk = self.network_policy, self._effective_memory_mb, self._effective_storage_mb
        network = NETWORKS[policy.network_mode.value]
        self._sandbox = await open_sandbox(
            "docker",
            image=image,
            network=network,
            allow=tuple(policy.allowed_hosts) if network == "allow" else (),
            limits=Limits(
                memory_bytes=memory * 1024**2 if memory else None,
                cpus=self._effective_cpus,
                pids=MAX_PROCESSES,
                disk_bytes=disk * 1024**2 if disk else None,
                files=None,
            ),
        )
        try:
            configured = await _docker("image", "inspect", "--format", "{{.Config.WorkingDir}}", image)
            self._workdir = self.task_env_config.workdir or configured.strip() or "/"
            await self.sandbox.exec(["mkdir", "-p", "--", self._workdir], cwd="/")
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _image(self, force_build: bool) -> str:
        """Return the image of the task, which is built from its Dockerfile if that is its definition."""
        named = self.task_env_config.docker_image
        if named and should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build
        ):
            return str(named)
        tag = f"llm-sandbox-harbor:{self.environment_id[:12]}"
        try:
            async with asyncio.timeout(self.task_env_config.build_timeout_sec):
                await _docker("build", "--quiet", "--tag", tag, str(self.environment_dir))
        except (RuntimeError, TimeoutError) as error:
            raise SandboxBuildFailedError(
                f"{self.environment_dir / DOCKERFILE} cannot be built: {error}"
            ) from error
        return tag

    async def stop(self, delete: bool) -> None:
        """End the container. A sandbox ends with its owner, so `delete=False` keeps nothing, which is logged."""
        sandbox, self._sandbox = self._sandbox, None
        if not delete:
            self.logger.warning("The container ends with this process: delete=False keeps nothing.")
        if sandbox is not None:
            await sandbox.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Execute a command with bash. Raises RuntimeError when the command was ended at its timeout, as Harbor's."""
        user, callback = self._resolve_user(user), self._output_callback()
        result = await self.sandbox.exec(
            ["bash", "-c", command],
            cwd=cwd or self._workdir,
            env={**self._startup_env(), **(self._merge_env(env) or {})},
            timeout=timeout_sec,
            user=None if user is None else str(user),
        )
        if result.timed_out or result.exit_code is None:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        stdout, stderr = (part.decode("utf-8", "replace") for part in (result.stdout, result.stderr))
        if callback is not None:
            for text, stream in ((stdout, "stdout"), (stderr, "stderr")):
                if text:
                    await callback(text, stream)
        return ExecResult(stdout=stdout, stderr=stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file to `target_path`, with its permissions; missing folders are made."""
        source = Path(source_path)
        await self.sandbox.write_file(target_path, await asyncio.to_thread(source.read_bytes))
        await self.sandbox.exec(["chmod", f"{source.stat().st_mode & 0o777:o}", "--", target_path], cwd="/")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a folder into `target_dir`."""
        for notice in await self.sandbox.upload(source_dir, target_dir):
            self.logger.warning(notice)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file from the environment to `target_path`."""
        data = await self.sandbox.read_file(source_path, limit=MAX_FILE_BYTES)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a folder from the environment into `target_dir`: files and folders, without links."""
        for notice in await self.sandbox.download(source_dir, target_dir, kind="folder"):
            self.logger.warning(notice)


async def _docker(*words: str) -> str:
    """Execute a Docker command and return its output. Raises RuntimeError with its last lines if it fails."""
    process = await asyncio.create_subprocess_exec(
        "docker", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(stderr.decode("utf-8", "replace").strip()[-_SHOWN_BUILD_CHARACTERS:])
    return stdout.decode("utf-8", "replace")
