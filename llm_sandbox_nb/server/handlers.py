"""The REST half of `/llm-sandbox/api`. Described in `rest-api.yml`, which a test holds against these routes.

Each verb is decorated in its own concrete class: `authorized` remembers the first resource it sees, so a
decorated verb in a shared base class would authorise every subclass as the first one used.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import wraps
from typing import Any
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from llm_sandbox_nb.sandbox.errors import (
    HistoryError,
    ImageError,
    IsolationUnavailableError,
    OutputLimitExceededError,
    PolicyError,
    SandboxError,
    SandboxLostError,
)
from llm_sandbox_nb.server.managed import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.policy import SandboxRequest
from llm_sandbox_nb.server.runs import RunControlError, UnknownRunError
from llm_sandbox_nb.server.usage import UsageMeter

API = "/llm-sandbox/api"
AUTH_RESOURCE = "llm-sandbox"
ID = r"(?P<sandbox_id>[0-9a-f]{32})"
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownSandboxError, 404),
    (UnknownRunError, 404),
    (RunControlError, 409),
    (PolicyError, 403),
    (ImageError, 422),
    (IsolationUnavailableError, 503),
    (SandboxLostError, 410),
    (OutputLimitExceededError, 413),
    (HistoryError, 404),
    (SandboxError, 500),
    (FileNotFoundError, 404),
    (IsADirectoryError, 409),
    (NotADirectoryError, 409),
    (PermissionError, 403),
    (ValueError, 400),
)
_DEPTHS = frozenset(map(str, range(1, 11)))
Verb = Callable[..., Coroutine[Any, Any, None]]


def told(verb: Verb) -> Verb:
    """Answer the errors that are meant for a person with their sentence and the class's name."""

    @wraps(verb)
    async def wrapper(self: SandboxAPIHandler, *args: str, **kwargs: str) -> None:
        try:
            await verb(self, *args, **kwargs)
        except tuple(kind for kind, _ in _STATUS) as error:
            self.tell(error)

    return wrapper


class SandboxAPIHandler(APIHandler):
    """Access to the manager; no verbs."""

    auth_resource = AUTH_RESOURCE

    @property
    def manager(self) -> SandboxManager:
        """The manager of this server's sandboxes."""
        manager: SandboxManager = self.settings["llm_sandbox_manager"]
        return manager

    def tell(self, error: Exception) -> None:
        """Answer with `error`: its sentence, its class and the status that fits it."""
        self.set_status(next(status for kind, status in _STATUS if isinstance(error, kind)))
        self.finish({"message": str(error), "error": type(error).__name__})

    def body(self) -> dict[str, Any]:
        """The request's JSON object. Raises ValueError when it is something else."""
        body = self.get_json_body() or {}
        if not isinstance(body, dict):
            raise ValueError("The body of the request must be a JSON object.")
        return body

    def model(self, managed: ManagedSandbox) -> dict[str, Any]:
        """What clients see of a sandbox."""
        path = f"{self.base_url.rstrip('/')}{API}/sandboxes/{managed.id}"
        terminal = f"{path}/terminal" if self.manager.policy.allow_terminal else None
        return {**managed.to_json(), "channel": f"{path}/channel", "terminal": terminal}


class InfoHandler(SandboxAPIHandler):
    """What this server offers and allows."""

    @web.authenticated
    @authorized
    @told
    async def get(self) -> None:
        """Version, policy, and how many sandboxes there are and may be."""
        self.finish(self.manager.info())


class KernelHandler(SandboxAPIHandler):
    """One of this server's own kernels, and its sandbox."""

    @web.authenticated
    @authorized
    @told
    async def get(self, kernel_id: str) -> None:
        """By this a kernel learns whether the server is its own: 404 for a kernel that it did not start."""
        notebook = await self.manager.notebook_of(kernel_id)
        managed = await self.manager.find(kernel_id)
        sandbox = self.model(managed) if managed else None
        self.finish({"kernel_id": kernel_id, "notebook": notebook, "sandbox": sandbox})


class SandboxesHandler(SandboxAPIHandler):
    """All sandboxes."""

    @web.authenticated
    @authorized
    @told
    async def get(self) -> None:
        """List them, those of an ended server too."""
        await self.manager.ready()
        self.finish({"sandboxes": [self.model(one) for one in self.manager.all()]})

    @web.authenticated
    @authorized
    @told
    async def post(self) -> None:
        """The sandbox of a kernel: the running one as it is (200), else a new one as asked for (201)."""
        body = self.body()
        kernel_id = body.get("kernel_id")
        if not isinstance(kernel_id, str):
            raise ValueError("'kernel_id' must be the id of one of this server's kernels.")
        request = SandboxRequest.from_json(body)
        managed, created = await self.manager.acquire(kernel_id, request, fresh=body.get("fresh") is True)
        self.set_status(201 if created else 200)
        self.finish(self.model(managed))


class SandboxHandler(SandboxAPIHandler):
    """One sandbox."""

    @web.authenticated
    @authorized
    @told
    async def get(self, sandbox_id: str) -> None:
        """Its state, settings and protection."""
        await self.manager.ready()
        self.finish(self.model(self.manager.get(sandbox_id)))

    @web.authenticated
    @authorized
    @told
    async def delete(self, sandbox_id: str) -> None:
        """End it and everything in it."""
        await self.manager.stop(sandbox_id, "It was stopped; the next use starts a new one.")
        self.set_status(204)
        self.finish()


class ResetHandler(SandboxAPIHandler):
    """A sandbox made empty."""

    @web.authenticated
    @authorized
    @told
    async def post(self, sandbox_id: str) -> None:
        """End it and start an empty one with the same id and settings."""
        self.finish(self.model(await self.manager.reset(sandbox_id)))


class ForkHandler(SandboxAPIHandler):
    """A second sandbox like one that runs."""

    @web.authenticated
    @authorized
    @told
    async def post(self, sandbox_id: str) -> None:
        """Start an empty one of the same kernel and settings; what it is filled with is the client's to say."""
        await self.manager.ready()
        self.set_status(201)
        self.finish(self.model(await self.manager.fork(sandbox_id)))


class RestartHandler(SandboxAPIHandler):
    """A sandbox whose processes are ended and whose files stay."""

    @web.authenticated
    @authorized
    @told
    async def post(self, sandbox_id: str) -> None:
        """End all that runs in it and start a new shell."""
        self.finish(self.model(await self.manager.restart(sandbox_id)))


class StatsHandler(SandboxAPIHandler):
    """What a sandbox uses."""

    meter = UsageMeter()

    @web.authenticated
    @authorized
    @told
    async def get(self, sandbox_id: str) -> None:
        """Its processes, their CPU time and memory. Looking is no use of it: an idle one stays idle."""
        usage = await self.meter.measure(self.manager.running(sandbox_id, used=False))
        self.finish(usage.to_json())


class FilesHandler(SandboxAPIHandler):
    """A listing of a sandbox's files."""

    @web.authenticated
    @authorized
    @told
    async def get(self, sandbox_id: str) -> None:
        """Entries below `path` (default: the working directory) to `depth` levels (default 1)."""
        sandbox = self.manager.running(sandbox_id, used=False)
        path = self.get_query_argument("path", sandbox.directories.root)
        depth = self.get_query_argument("depth", "1")
        if depth not in _DEPTHS:
            raise ValueError("'depth' must be a number from 1 to 10.")
        entries = await sandbox.list_files(path, depth=int(depth))
        self.finish({"path": path, "files": [asdict(entry) for entry in entries]})


class FileHandler(SandboxAPIHandler):
    """One file of a sandbox, as a download and never as a page: what the model made is hostile."""

    @web.authenticated
    @authorized
    @told
    async def get(self, sandbox_id: str) -> None:
        """The bytes of the file `path`."""
        sandbox = self.manager.running(sandbox_id)
        path = self.get_query_argument("path")
        data = await sandbox.read_file(path, limit=self.manager.max_download_bytes)
        name = quote(posixpath.basename(path), safe="")
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        self.finish(data, set_content_type="application/octet-stream")

    @web.authenticated
    @authorized
    @told
    async def put(self, sandbox_id: str) -> None:
        """Write the request's body to the file `path`, making its folders; one that is there is replaced."""
        sandbox = self.manager.running(sandbox_id)
        await sandbox.write_file(self.get_query_argument("path"), self.request.body)
        self.set_status(204)
        self.finish()


rest_routes: list[tuple[str, type[SandboxAPIHandler]]] = [
    (rf"{API}/info", InfoHandler),
    (rf"{API}/kernels/(?P<kernel_id>[\w-]+)", KernelHandler),
    (rf"{API}/sandboxes", SandboxesHandler),
    (rf"{API}/sandboxes/{ID}", SandboxHandler),
    (rf"{API}/sandboxes/{ID}/reset", ResetHandler),
    (rf"{API}/sandboxes/{ID}/fork", ForkHandler),
    (rf"{API}/sandboxes/{ID}/restart", RestartHandler),
    (rf"{API}/sandboxes/{ID}/stats", StatsHandler),
    (rf"{API}/sandboxes/{ID}/files", FilesHandler),
    (rf"{API}/sandboxes/{ID}/files/content", FileHandler),
]
"""Every REST route below the server's base URL."""
