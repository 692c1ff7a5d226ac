"""The routes of runs below `/llm-sandbox/api`: publish, watch, list, control. See `rest-api.yml`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_server.auth.decorator import ws_authenticated
from tornado.websocket import WebSocketClosedError

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.server.handlers import API, SandboxAPIHandler, rest_verb, until_taken
from llm_sandbox_nb.server.relay import TOO_SLOW
from llm_sandbox_nb.server.runs import (
    ForeignRunError,
    Json,
    PublishedRun,
    PublisherError,
    RunRegistry,
    UnknownRunError,
)
from llm_sandbox_nb.server.sockets import Socket
from llm_sandbox_nb.trajectory.run_folder import JOURNAL, RUNS, notebook_folder_name

if TYPE_CHECKING:
    from llm_sandbox_nb.trajectory.run_summary import RunSummary

RUN_ID = r"(?P<run_id>[A-Za-z0-9][\w-]{0,127})"
BROKEN, FOREIGN, UNKNOWN, REPLACED = 4400, 4403, 4404, 4409
"""Close codes: broken protocol, run of another kernel, unknown run, newer connection of the same kernel."""
SHARED_NOTEBOOKS = "collaborative_document_save_delay"
"""Setting of this server that exists if jupyter-collaboration shares notebooks between pages."""
MAX_LISTED_RUNS = 30
"""Maximum number of runs that are listed for a notebook."""
MESSAGE_LIMIT = 64 * 1024 * 1024
_BATCH_BYTES = 512 * 1024
_TEXT_INTERVAL = 0.03
"""Seconds between two messages that have only unfinished text."""


class TooSlowError(LLMSandboxError):
    """Raised if a watcher does not read messages fast enough."""


class RunsHandler(SandboxAPIHandler):
    """Handler for all runs."""

    @rest_verb
    async def get(self) -> None:
        """List all runs, oldest first."""
        self.finish({"runs": [await self.runs.describe(run) for run in self.runs.all()]})


class NotebookRunsHandler(SandboxAPIHandler):
    """Handler for the runs of a notebook on disk."""

    @rest_verb
    async def get(self) -> None:
        """Return the newest runs of the notebook `path`, from the default folder and the folders that kernels named."""
        path = self.path()
        runs = [run for run in self.runs.all() if run.folder is not None]
        published = [run for run in runs if await self.runs.find_notebook(run) == path]
        folders = {run.folder.parent for run in published if run.folder is not None}
        root = contents_path(self, "")
        if (notebook := contents_path(self, path)) is not None:
            folders.add(records_folder(notebook))
        listed, total = await asyncio.to_thread(_summaries, folders)
        live = {run.id for run in published if run.state in ("live", "away")}
        self.finish(
            {"runs": [_listed(summary, root, summary.id in live) for summary in listed], "total": total}
        )


def contents_path(handler: SandboxAPIHandler, path: str) -> Path | None:
    """Return the path of a file below the server's root. Return None if the server's files are not on this machine."""
    find = getattr(handler.contents_manager, "_get_os_path", None)
    return None if find is None else Path(find(path))


def records_folder(notebook: Path) -> Path:
    """Return the default folder for the records of a notebook's runs. A setting can name another folder."""
    return notebook.parent / RUNS / notebook_folder_name(notebook.name)


def record_folder(notebook: Path, run_id: str) -> Path | None:
    """Return the folder with a run's record next to its notebook, or None if there is none."""
    return run_folder(str((records_folder(notebook) / run_id).absolute()), run_id)


def _summaries(folders: set[Path]) -> tuple[list[RunSummary], int]:
    from llm_sandbox_nb.trajectory.run_summary import summaries

    found = [summaries(folder, MAX_LISTED_RUNS) for folder in folders]
    newest = sorted(
        (summary for some, _ in found for summary in some), key=lambda summary: summary.started, reverse=True
    )
    return newest[:MAX_LISTED_RUNS], sum(total for _, total in found)


def _listed(one: RunSummary, root: Path | None, live: bool) -> Json:
    from llm_sandbox_nb.trajectory.doubts.rules import doubts_json

    journal = one.folder / JOURNAL
    inside = root is not None and journal.is_relative_to(root)
    return {
        "id": one.id,
        "task": one.task,
        "started": one.started,
        **one.run_state(live=live).to_json(),
        "answer": one.answer,
        "doubts": doubts_json(one.doubts),
        "steps": one.steps,
        "forked_from": one.forked_from,
        "journal": journal.relative_to(root).as_posix() if root and inside else None,
    }


class RunHandler(SandboxAPIHandler):
    """Handler for one run."""

    @rest_verb
    async def get(self, run_id: str) -> None:
        """Return the state of the run."""
        self.finish(await self.runs.describe(self.runs.get(run_id)))


class RunControlHandler(SandboxAPIHandler):
    """Handler for decisions during a run."""

    @rest_verb
    async def post(self, run_id: str) -> None:
        """Pass a decision to the run. Answer as soon as the run has accepted the decision."""
        run = self.runs.get(run_id)
        await run.control(self.body(), self.runs.answer_timeout)
        self.finish(await self.runs.describe(run))


class RunFileHandler(SandboxAPIHandler):
    """Handler for a file of a live run. The file is sent as a download, never as a page, because it may be hostile."""

    @rest_verb
    async def get(self, run_id: str) -> None:
        """Return the bytes of the file `path` of the output folder."""
        run, path = self.runs.get(run_id), self.path()
        data = await run.file(path, self.runs.max_file_bytes, self.runs.answer_timeout)
        await self.download(path, data)


class RunSocket(Socket):
    """Base of the two WebSockets of a run."""

    max_message_size = MESSAGE_LIMIT

    @property
    def runs(self) -> RunRegistry:
        runs: RunRegistry = self.settings["llm_sandbox_runs"]
        return runs


class RunPublishHandler(RunSocket):
    """Connection of a kernel that publishes a run and receives decisions."""

    _run_id = ""
    _run: PublishedRun | None = None
    _claim: asyncio.Task[None] | None = None
    """Task that opens a sandbox to outside agents."""

    @ws_authenticated
    async def get(self, run_id: str) -> None:
        """Authorise the request before the switch to a WebSocket."""
        await self.authorise()
        await super().get(run_id=run_id)

    def open(self, run_id: str) -> None:
        """Wait for the kernel's first message."""
        super().open()
        self._run_id = run_id

    def on_message(self, message: bytes | str) -> None:
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
            raise PublisherError("A publisher may not send a message of this kind.")

    def _begin(self, message: Json) -> None:
        kernel_id, owner = message.get("kernel_id"), message.get("owner")
        if message.get("type") != "hello" or not isinstance(kernel_id, str) or not isinstance(owner, str):
            raise PublisherError("The first message must name the run and its kernel.")
        self.runs.check_kernel(self._run_id, kernel_id, message.get("ticket"))
        self._run = self.runs.publish(self._run_id, kernel_id, owner, self)
        self._run.folder = run_folder(message.get("folder"), self._run_id)
        self._run.cell = run_cell(message.get("cell"))
        self._run.outside = self._outside_sandbox(message.get("outside"), kernel_id)
        if message.get("outside") and self._run.outside is None:
            self._claim = asyncio.ensure_future(self._claim_adopted(self._run, message["outside"], kernel_id))
        if message.get("goes_on") is True:
            self._run.go_on()
        ticket = self.runs.ticket(self._run_id, kernel_id)
        shared = SHARED_NOTEBOOKS in self.settings
        self.send({"type": "welcome", "next": len(self._run.store), "ticket": ticket, "shared": shared})

    async def _claim_adopted(self, run: PublishedRun, sandbox_id: object, kernel_id: str) -> None:
        """Open a sandbox of an earlier server to outside agents, as soon as this server has adopted it."""
        await self.settings["llm_sandbox_manager"].ready()
        if run.kernel is self:
            run.outside = self._outside_sandbox(sandbox_id, kernel_id)

    def _outside_sandbox(self, sandbox_id: object, kernel_id: str) -> str | None:
        """Return `sandbox_id` if this sandbox belongs to the kernel, else None."""
        manager = self.settings["llm_sandbox_manager"]
        own = (managed.id for managed in manager.in_use() if managed.kernel_id == kernel_id)
        return next((id for id in own if id == sandbox_id), None)

    def send(self, message: Json) -> None:
        with contextlib.suppress(WebSocketClosedError):
            self.write_message(json.dumps(message))

    def dismiss(self, reason: str) -> None:
        self.close(REPLACED, reason)

    def on_close(self) -> None:
        """Note that the kernel has disconnected."""
        run, self._run = self._run, None
        if run is not None:
            self.runs.leave(run, self)


class RunEventsHandler(RunSocket):
    """Connection of a page that watches a run: sends all past events, then each new event once."""

    _pump: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, run_id: str) -> None:
        """Authorise the request before the switch to a WebSocket."""
        await self.authorise()
        await super().get(run_id=run_id)

    def open(self, run_id: str) -> None:
        """Start to send the events from number `since` on."""
        super().open()
        since = self.get_query_argument("since", "0")
        if not since.isdecimal() or len(since) > 9:
            self.close(BROKEN, "'since' must be the number of events that the watcher already has.")
            return
        self._pump = asyncio.ensure_future(self._watch(run_id, int(since)))

    def on_message(self, message: bytes | str) -> None:
        """Ignore messages of watchers."""

    def on_close(self) -> None:
        """Stop sending events, because the watcher has disconnected."""
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
        except TooSlowError:
            self.close(TOO_SLOW, "The watcher did not read its messages; connect again.")
            return
        finally:
            run.watchers.discard(news.set)
        self.close(1000, "The run is over.")

    async def _send_all(self, run: PublishedRun, position: int, news: asyncio.Event) -> None:
        """Send the events. Nothing is queued: a slow watcher gets stored events later, in larger messages.

        Events may arrive while a message is being sent, so the end of the run is sent only after all of them.
        """
        seen: dict[int, int] = {}
        sent: str | None = None
        while True:
            news.clear()
            lines = run.store.read(position, _BATCH_BYTES)
            position += len(lines)
            whole = position >= len(run.store)
            texts = [json.dumps(event) for event in run.tail.since(seen)] if whole else []
            if lines or texts:
                events = ",".join([*lines, *texts])
                message = f'{{"type":"events","next":{position},"events":[{events}]}}'
                if not await until_taken(self.write_message(message), len(message)):
                    raise TooSlowError
            if position >= len(run.store) and run.state != sent:
                sent = run.state
                await self.write_message(json.dumps({"type": "state", "state": sent}))
            if position >= len(run.store) and run.finished:
                return
            if whole and not news.is_set():
                await news.wait()
            if texts and not lines:
                await asyncio.sleep(_TEXT_INTERVAL)


def run_folder(path: object, run_id: str) -> Path | None:
    """Return `path` if it is an absolute path of an existing folder with the name `run_id`, or None."""
    if not isinstance(path, str) or not path or "\0" in path:
        return None
    folder = Path(path)
    try:
        return folder if folder.is_absolute() and folder.name == run_id and folder.is_dir() else None
    except OSError:  # the path is too long
        return None


def run_cell(value: object) -> Json | None:
    """Return the cell that a kernel has sent with its run, or None if the value is not a cell."""
    if not isinstance(value, dict) or not isinstance(value.get("count"), int):
        return None
    texts = {name: value.get(name) for name in ("id", "request", "client")}
    if not all(isinstance(text, str) and len(text) <= 200 for text in texts.values()):
        return None
    return {**texts, "count": value["count"]}


def _object(message: bytes | str) -> Json:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise PublisherError("The message is not JSON.") from error
    if not isinstance(value, dict):
        raise PublisherError("The message is not a JSON object.")
    return value


run_routes: list[tuple[str, type[Any]]] = [
    (rf"{API}/runs", RunsHandler),
    (rf"{API}/notebook-runs", NotebookRunsHandler),
    (rf"{API}/runs/{RUN_ID}", RunHandler),
    (rf"{API}/runs/{RUN_ID}/control", RunControlHandler),
    (rf"{API}/runs/{RUN_ID}/files/content", RunFileHandler),
    (rf"{API}/runs/{RUN_ID}/publish", RunPublishHandler),
    (rf"{API}/runs/{RUN_ID}/events", RunEventsHandler),
]
"""Every run route below the server's base URL."""
