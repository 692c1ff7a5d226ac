"""The routes of runs below `/llm-sandbox/api`: publish, watch, list, control. See `rest-api.yml`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized, ws_authenticated
from tornado import web
from tornado.websocket import WebSocketClosedError

from llm_sandbox_nb.server.handlers import API, SandboxAPIHandler, told
from llm_sandbox_nb.server.runs import (
    ForeignRunError,
    Json,
    PublishedRun,
    PublisherError,
    RunRegistry,
    UnknownRunError,
)
from llm_sandbox_nb.server.sockets import Socket

RUN_ID = r"(?P<run_id>[A-Za-z0-9][\w-]{0,127})"
BROKEN, FOREIGN, UNKNOWN, REPLACED = 4400, 4403, 4404, 4409
"""Close codes: the protocol was broken; the run is another kernel's; there is no such run; a newer connection."""
MESSAGE_LIMIT = 64 * 1024 * 1024
_BATCH = 512 * 1024
_BREATH = 0.03
"""Seconds between two messages that hold nothing but text that is under way."""


class RunsHandler(SandboxAPIHandler):
    """All runs."""

    @web.authenticated
    @authorized
    @told
    async def get(self) -> None:
        """List them, oldest first."""
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        self.finish({"runs": [await runs.describe(run) for run in runs.all()]})


class RunHandler(SandboxAPIHandler):
    """One run."""

    @web.authenticated
    @authorized
    @told
    async def get(self, run_id: str) -> None:
        """How it stands."""
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        self.finish(await runs.describe(runs.get(run_id)))


class RunControlHandler(SandboxAPIHandler):
    """Decisions during a run."""

    @web.authenticated
    @authorized
    @told
    async def post(self, run_id: str) -> None:
        """Carry a decision to the run; answers when the run has taken it."""
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        run = runs.get(run_id)
        await run.control(self.body(), runs.answer_timeout)
        self.finish(await runs.describe(run))


class RunFileHandler(SandboxAPIHandler):
    """One file of a run under way, as a download and never as a page: what the model made is hostile."""

    @web.authenticated
    @authorized
    @told
    async def get(self, run_id: str) -> None:
        """The bytes of the file `path` of the output folder."""
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        path = self.get_query_argument("path")
        data = await runs.get(run_id).file(path, runs.max_file_bytes, runs.answer_timeout)
        name = quote(posixpath.basename(path), safe="")
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        self.finish(data, set_content_type="application/octet-stream")


class RunSocket(Socket):
    """What both WebSockets have in common; no verbs."""

    max_message_size = MESSAGE_LIMIT

    @property
    def runs(self) -> RunRegistry:
        """The runs of this server."""
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        return runs


class RunPublishHandler(RunSocket):
    """A kernel publishes its run here, and gets decisions."""

    _run_id = ""
    _run: PublishedRun | None = None

    @ws_authenticated
    async def get(self, run_id: str) -> None:
        """Authorise before the protocol is switched."""
        await self.authorise()
        await super().get(run_id=run_id)

    def open(self, run_id: str) -> None:
        """Wait for the kernel's first message."""
        super().open()
        self.set_nodelay(True)
        self._run_id = run_id

    def on_message(self, message: bytes | str) -> None:
        """A message of the kernel."""
        try:
            self._take(_object(message))
        except ForeignRunError as error:
            self.close(FOREIGN, str(error))
        except PublisherError as error:
            self.close(BROKEN, str(error)[:100])

    def _take(self, message: Json) -> None:
        kind, events = message.get("type"), message.get("events")
        if self._run is None:
            self._begin(message)
        elif kind == "events" and isinstance(events, list) and isinstance(message.get("from"), int):
            self._run.take(message["from"], events)
            self.runs.note_activity()
        elif kind == "transient" and isinstance(events, list):
            self._run.take_transient(events)
        elif kind == "answer":
            self._run.take_answer(message)
        else:
            raise PublisherError("That is no message of a publisher.")

    def _begin(self, message: Json) -> None:
        kernel_id, owner = message.get("kernel_id"), message.get("owner")
        if message.get("type") != "hello" or not isinstance(kernel_id, str) or not isinstance(owner, str):
            raise PublisherError("The first message must say whose run it is.")
        self._run = self.runs.publish(self._run_id, kernel_id, owner, self)
        self._run.folder = run_folder(message.get("folder"), self._run_id)
        if message.get("goes_on") is True:
            self._run.go_on()
        self.send({"type": "welcome", "next": len(self._run.store)})

    def send(self, message: Json) -> None:
        """See `Kernel.send`."""
        with contextlib.suppress(WebSocketClosedError):
            self.write_message(json.dumps(message))

    def dismiss(self, reason: str) -> None:
        """See `Kernel.dismiss`."""
        self.close(REPLACED, reason)

    def on_close(self) -> None:
        """The kernel has gone."""
        run, self._run = self._run, None
        if run is not None:
            self.runs.leave(run, self)


class RunEventsHandler(RunSocket):
    """Somebody watches a run: all past events, then what comes, each once."""

    _pump: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, run_id: str) -> None:
        """Authorise before the protocol is switched."""
        await self.authorise()
        await super().get(run_id=run_id)

    def open(self, run_id: str) -> None:
        """Begin with event number `since`."""
        super().open()
        self.set_nodelay(True)
        since = self.get_query_argument("since", "0")
        if not since.isdecimal() or len(since) > 9:
            self.close(BROKEN, "'since' must be the number of events that are known already.")
            return
        self._pump = asyncio.ensure_future(self._watch(run_id, int(since)))

    def on_message(self, message: bytes | str) -> None:
        """Who watches has nothing to say here."""

    def on_close(self) -> None:
        """Nobody watches any more."""
        if self._pump is not None:
            self._pump.cancel()

    async def _watch(self, run_id: str, since: int) -> None:
        try:
            run = await self.runs.wait_for(run_id)
        except UnknownRunError as error:
            self.close(UNKNOWN, str(error)[:100])
            return
        news = asyncio.Event()
        run.watchers.add(news.set)
        try:
            await self._send_all(run, since, news)
        except WebSocketClosedError:
            return
        finally:
            run.watchers.discard(news.set)
        self.close(1000, "The run is over.")

    async def _send_all(self, run: PublishedRun, position: int, news: asyncio.Event) -> None:
        """Nothing is queued here: a slow watcher gets later, in larger pieces, what is kept anyway."""
        seen: dict[int, int] = {}
        told: str | None = None
        while True:
            news.clear()
            lines = run.store.read(position, _BATCH)
            position += len(lines)
            whole = position >= len(run.store)
            texts = [json.dumps(event) for event in run.tail.since(seen)] if whole else []
            if lines or texts:
                events = ",".join([*lines, *texts])
                await self.write_message(f'{{"type":"events","next":{position},"events":[{events}]}}')
            if whole and run.state != told:
                told = run.state
                await self.write_message(json.dumps({"type": "state", "state": told}))
            if whole and run.finished:
                return
            if whole and not news.is_set():
                await news.wait()
            if texts and not lines:
                await asyncio.sleep(_BREATH)


def run_folder(told: object, run_id: str) -> Path | None:
    """The folder that a kernel names for its run; None when it is not one on this machine."""
    if not isinstance(told, str) or not told or "\0" in told:
        return None
    folder = Path(told)
    return folder if folder.is_absolute() and folder.name == run_id and folder.is_dir() else None


def _object(message: bytes | str) -> Json:
    try:
        value = json.loads(message)
    except ValueError as error:
        raise PublisherError("That is no JSON.") from error
    if not isinstance(value, dict):
        raise PublisherError("That is no JSON object.")
    return value


run_routes: list[tuple[str, type[Any]]] = [
    (rf"{API}/runs", RunsHandler),
    (rf"{API}/runs/{RUN_ID}", RunHandler),
    (rf"{API}/runs/{RUN_ID}/control", RunControlHandler),
    (rf"{API}/runs/{RUN_ID}/files/content", RunFileHandler),
    (rf"{API}/runs/{RUN_ID}/publish", RunPublishHandler),
    (rf"{API}/runs/{RUN_ID}/events", RunEventsHandler),
]
"""Every route of runs below the server's base URL."""
