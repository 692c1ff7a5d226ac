"""The REST routes of `/llm-sandbox/api`. A test compares them with `rest-api.yml`.

Decorate a verb, such as `get` or `post`, only in a concrete class. `authorized` keeps the resource of the first
request. In a decorated base class, it would then check the requests of all subclasses against this one resource.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from functools import wraps
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from llm_sandbox_nb.sandbox.errors import (
    HistoryError,
    ImageError,
    IsolationUnavailableError,
    OutputLimitExceededError,
    PolicyError,
    SandboxError,
    SandboxLostError,
)
from llm_sandbox_nb.sandbox.transfer import MAX_BYTES_IN_MEMORY
from llm_sandbox_nb.server.managed_sandbox import ManagedSandbox
from llm_sandbox_nb.server.manager import SandboxManager, UnknownSandboxError
from llm_sandbox_nb.server.processes import UsageMeter
from llm_sandbox_nb.server.runs import RunControlError, RunRegistry, UnknownRunError

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
    (OSError, 500),
)
_DEPTHS = frozenset(map(str, range(1, 11)))
Verb = Callable[..., Coroutine[Any, Any, None]]
_STATUS_OF_ERRNO = {
    **dict.fromkeys((errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EILSEQ), 400),
    **dict.fromkeys((errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.ETXTBSY), 409),
    errno.EROFS: 403,
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), 507),
    errno.ETIMEDOUT: 504,
}
"""HTTP statuses for the errnos of a sandbox's file system."""
PATIENCE = 60.0
"""Seconds that a client always has to send a body or read an answer, whatever the size."""
MIN_BYTES_PER_SECOND = 64 * 1024
"""Minimum bytes per second that a client must transfer after `PATIENCE` is over."""


def seconds_for(size: int) -> float:
    """Return the maximum number of seconds for the transfer of `size` bytes."""
    return PATIENCE + size / MIN_BYTES_PER_SECOND


async def until_taken(written: Awaitable[Any], size: int) -> bool:
    """Wait until a client has read the written bytes. Return False if the client was too slow."""
    waiting = asyncio.ensure_future(written)
    with contextlib.suppress(StreamClosedError):
        await asyncio.wait({waiting}, timeout=seconds_for(size))
        if not waiting.done():
            waiting.add_done_callback(lambda late: late.cancelled() or late.exception())
            return False
        waiting.result()
    return True


def rest_verb(verb: Verb) -> Verb:
    """Decorate a verb: authorise its requests, and answer its errors with their message and class name."""

    @web.authenticated
    @authorized
    @wraps(verb)
    async def wrapper(self: SandboxAPIHandler, *args: str, **kwargs: str) -> None:
        try:
            await verb(self, *args, **kwargs)
        except tuple(kind for kind, _ in _STATUS) as error:
            self.respond_error(error)

    return cast("Verb", wrapper)


class SandboxAPIHandler(APIHandler):
    """Base of the handlers, with access to sandboxes and runs."""

    auth_resource = AUTH_RESOURCE

    @property
    def manager(self) -> SandboxManager:
        manager: SandboxManager = self.settings["llm_sandbox_manager"]
        return manager

    @property
    def runs(self) -> RunRegistry:
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        return runs

    def respond_error(self, error: Exception) -> None:
        """Answer with the message, the class name and the status of `error`."""
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        if isinstance(error, OSError) and error.errno is not None:
            status = _STATUS_OF_ERRNO.get(error.errno, status)
        self.set_status(status)
        self.finish({"message": str(error)[:1000], "error": type(error).__name__})

    async def download(self, path: str, data: bytes) -> None:
        """Answer with a file as a download, never as a page. Disconnect a client that reads too slowly."""
        name = quote(posixpath.basename(path), safe="", errors="replace")
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        if not await until_taken(self.finish(data, set_content_type="application/octet-stream"), len(data)):
            connection: Any = self.request.connection
            connection.close()

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object. Raises ValueError for any other body."""
        body = self.get_json_body()
        if not isinstance(body, dict | None):
            raise ValueError("The body of the request must be a JSON object.")
        return body or {}

    def flag(self, name: str) -> bool:
        """Return the field `name` of the body; default: False. Raises ValueError if it is neither true nor false."""
        value = self.body().get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name!r} must be true or false.")
        return value

    def path(self, default: str | None = None) -> str:
        """Return the argument `path`. `get_query_argument` would replace control characters, as names of files have."""
        if given := self.request.query_arguments.get("path"):
            return self.decode_argument(given[-1], "path")
        if default is None:
            raise web.MissingArgumentError("path")
        return default

    def model(self, managed: ManagedSandbox) -> dict[str, Any]:
        """Return the description of a sandbox for clients."""
        path = f"{self.base_url.rstrip('/')}{API}/sandboxes/{managed.id}"
        terminal = f"{path}/terminal" if self.manager.policy.allow_terminal else None
        prepared = self.manager.prepared(managed.kernel_id)
        return {
            **managed.to_json(),
            "prepared_sandboxes": prepared,
            "channel": f"{path}/channel",
            "terminal": terminal,
        }


class InfoHandler(SandboxAPIHandler):
    """Handler that returns the options and limits of this server."""

    @rest_verb
    async def get(self) -> None:
        """Return the version, the policy, the number of sandboxes, and the limits."""
        self.finish(self.manager.info())


class KernelHandler(SandboxAPIHandler):
    """Handler for a kernel of this server, and its sandbox."""

    @rest_verb
    async def get(self, kernel_id: str) -> None:
        """Describe the kernel. Answer 404 if another server started it, so that a kernel can find its own server."""
        notebook = await self.manager.notebook_of(kernel_id)
        managed = await self.manager.find(kernel_id)
        sandbox = self.model(managed) if managed else None
        self.finish({"kernel_id": kernel_id, "notebook": notebook, "sandbox": sandbox})


class SandboxesHandler(SandboxAPIHandler):
    """Handler for all sandboxes."""

    @rest_verb
    async def get(self) -> None:
        """List all sandboxes of notebooks, including those that an ended server has left running."""
        await self.manager.ready()
        self.finish({"sandboxes": [self.model(managed) for managed in self.manager.in_use()]})

    @rest_verb
    async def post(self) -> None:
        """Return the running sandbox of a kernel (200), or start a new one (201)."""
        body = self.body()
        kernel_id = body.get("kernel_id")
        if not isinstance(kernel_id, str):
            raise ValueError("'kernel_id' must be the id of one of this server's kernels.")
        request = self.manager.policy.read_request(body)
        managed, created = await self.manager.acquire(kernel_id, request, fresh=self.flag("fresh"))
        self.set_status(201 if created else 200)
        self.finish(self.model(managed))


class PrepareHandler(SandboxAPIHandler):
    """Handler for the prepared sandboxes of a kernel."""

    @rest_verb
    async def post(self) -> None:
        """Prepare sandboxes for the next requests of a kernel. End its prepared sandboxes that have other settings."""
        body = self.body()
        kernel_id, count, seconds = body.get("kernel_id"), body.get("count"), body.get("seconds")
        if not isinstance(kernel_id, str):
            raise ValueError("'kernel_id' must be the id of one of this server's kernels.")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError("'count' must be a whole number of at least 0.")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ValueError("'seconds' must be a number above zero.")
        request = self.manager.policy.read_request(body)
        self.set_status(202)
        self.finish({"prepared": await self.manager.prepare(kernel_id, request, count, seconds)})


class StopIdleHandler(SandboxAPIHandler):
    """Handler that ends idle sandboxes, to make room for others."""

    @rest_verb
    async def post(self) -> None:
        """End idle sandboxes of kernels other than `kernel_id`, longest idle first. Without `most`, end all of them."""
        body = self.body()
        kernel_id, most = body.get("kernel_id", ""), body.get("most")
        if not isinstance(kernel_id, str):
            raise ValueError("'kernel_id' must be the id of a kernel.")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError("'most' must be a whole number of at least 1.")
        await self.manager.ready()
        stopped = await self.manager.stop_idle(kernel_id, most)
        self.finish({"stopped": [{"id": managed.id, "notebook": managed.notebook} for managed in stopped]})


class SandboxHandler(SandboxAPIHandler):
    """Handler for one sandbox."""

    @rest_verb
    async def get(self, sandbox_id: str) -> None:
        """Return the state, the settings and the protection."""
        await self.manager.ready()
        self.finish(self.model(self.manager.get(sandbox_id)))

    @rest_verb
    async def delete(self, sandbox_id: str) -> None:
        """End the sandbox and everything inside."""
        await self.manager.stop(sandbox_id, "It was stopped; the next use starts a new one.")
        self.set_status(204)
        self.finish()


class ResetHandler(SandboxAPIHandler):
    """Handler that resets a sandbox."""

    @rest_verb
    async def post(self, sandbox_id: str) -> None:
        """Replace the sandbox by an empty one with the same id and settings."""
        self.finish(self.model(await self.manager.reset(sandbox_id)))


class ForkHandler(SandboxAPIHandler):
    """Handler that forks a sandbox."""

    @rest_verb
    async def post(self, sandbox_id: str) -> None:
        """Start an empty sandbox with the same kernel and settings. The client copies the files."""
        await self.manager.ready()
        self.set_status(201)
        self.finish(self.model(await self.manager.fork(sandbox_id)))


class RestartHandler(SandboxAPIHandler):
    """Handler that restarts the processes of a sandbox."""

    @rest_verb
    async def post(self, sandbox_id: str) -> None:
        """End all processes of the sandbox and start a new shell. The files stay."""
        self.finish(self.model(await self.manager.restart(sandbox_id)))


class StatsHandler(SandboxAPIHandler):
    """Handler that returns the resource use of a sandbox."""

    meter = UsageMeter()

    @rest_verb
    async def get(self, sandbox_id: str) -> None:
        """Return the process count, CPU time and memory. Reading these figures does not reset the idle timer."""
        self.finish(asdict(await self.meter.measure(self.manager.running(sandbox_id, used=False))))


class FilesHandler(SandboxAPIHandler):
    """Handler that lists the files of a sandbox."""

    @rest_verb
    async def get(self, sandbox_id: str) -> None:
        """Return the entries below `path` (default: the working directory) to `depth` levels (default 1)."""
        sandbox = self.manager.running(sandbox_id, used=False)
        path = self.path(sandbox.directories.root)
        depth = self.get_query_argument("depth", "1")
        if depth not in _DEPTHS:
            raise ValueError("'depth' must be a number from 1 to 10.")
        entries = await sandbox.list_files(path, depth=int(depth))
        self.finish({"path": path, "files": [asdict(entry) for entry in entries]})


@web.stream_request_body
class FileHandler(SandboxAPIHandler):
    """Handler for a file of a sandbox. The file is sent as a download, never as a page, because it may be hostile."""

    _body: BinaryIO | None = None
    """Uploaded content. Large content is stored on disk."""

    async def prepare(self) -> None:  # type: ignore[override]  # as in APIHandler
        """Accept a body only from a user who is logged in, and only if the user sends it fast enough."""
        await super().prepare()
        if self.request.method != "PUT" or self._finished:
            return
        if self.current_user is None:
            raise web.HTTPError(403)
        self._body = cast(BinaryIO, tempfile.SpooledTemporaryFile(MAX_BYTES_IN_MEMORY))  # noqa: SIM115 - `on_finish` closes it
        size = self.request.headers.get("Content-Length", "")
        connection: Any = self.request.connection
        connection.set_body_timeout(seconds_for(int(size) if size.isdigit() else 0))

    async def data_received(self, chunk: bytes) -> None:
        """Store a piece of the body."""
        if self._body is not None:
            await asyncio.to_thread(self._body.write, chunk)

    def on_finish(self) -> None:
        """Close the body's file."""
        if self._body is not None:
            self._body.close()

    def on_connection_close(self) -> None:
        """Discard the body of a client that disconnected early."""
        super().on_connection_close()
        self.on_finish()

    @rest_verb
    async def get(self, sandbox_id: str) -> None:
        """Return the bytes of the file `path`."""
        sandbox = self.manager.running(sandbox_id)
        path = self.path()
        await self.download(path, await sandbox.read_file(path, limit=self.manager.max_download_bytes))

    @rest_verb
    async def put(self, sandbox_id: str) -> None:
        """Write the request's body to the file `path`. Missing folders are made, and an existing file is replaced."""
        sandbox = self.manager.running(sandbox_id)
        if self._body is not None:
            await sandbox.write_from(self.path(), self._body, self._body.tell())
        self.set_status(204)
        self.finish()


rest_routes: list[tuple[str, type[SandboxAPIHandler]]] = [
    (rf"{API}/info", InfoHandler),
    (rf"{API}/kernels/(?P<kernel_id>[\w-]+)", KernelHandler),
    (rf"{API}/sandboxes", SandboxesHandler),
    (rf"{API}/sandboxes/prepare", PrepareHandler),
    (rf"{API}/sandboxes/stop-idle", StopIdleHandler),
    (rf"{API}/sandboxes/{ID}", SandboxHandler),
    (rf"{API}/sandboxes/{ID}/reset", ResetHandler),
    (rf"{API}/sandboxes/{ID}/fork", ForkHandler),
    (rf"{API}/sandboxes/{ID}/restart", RestartHandler),
    (rf"{API}/sandboxes/{ID}/stats", StatsHandler),
    (rf"{API}/sandboxes/{ID}/files", FilesHandler),
    (rf"{API}/sandboxes/{ID}/files/content", FileHandler),
]
"""Every REST route below the server's base URL."""
