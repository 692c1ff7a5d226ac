"""Model on this machine, `local/NAME`, whose file is fetched and whose server is started at the first use."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.formatting import format_count, format_size, plural
from llm_sandbox_nb.model.connection import Access
from llm_sandbox_nb.model.contract import ContextLimit, DeltaCallback, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.local.gguf import part_files, read_header
from llm_sandbox_nb.model.local.loading_progress import show
from llm_sandbox_nb.model.local.server import ModelServer, serve
from llm_sandbox_nb.model.local.source import PREFIX, ListedSource, find_source, missing_extra
from llm_sandbox_nb.model.local.store import Stop, known_sum
from llm_sandbox_nb.model.message_form import SendReasoning
from llm_sandbox_nb.model.remote_model import RemoteModel

REPLY_SHARE = 4
"""A reply gets at most the context divided by this number, because a small model may repeat itself without end."""
SERVER_LOG = "model-server.log"
"""Name of the file with the engine's log in the folder of a run."""


@dataclass(frozen=True)
class _Served:
    model: RemoteModel
    server: ModelServer
    facts: Mapping[str, Any]


class LocalModel:
    """Model that is served by a child process. The function `model_names.make_model` makes such models."""

    scripted = False

    def __init__(self, name: str, *, send_reasoning: SendReasoning = "auto") -> None:
        """Raise ModelError if no model has this name."""
        self.name = name
        self._source = find_source(name.removeprefix(PREFIX))
        self._sampling: Mapping[str, Any] = {}
        if isinstance(self._source, ListedSource):
            self._sampling = self._source.model.sampling
        self._send_reasoning = send_reasoning
        self._served: _Served | None = None
        self._logs: set[Path] = set()
        self._recalled: tuple[Mapping[str, Any], list[tuple[dict[str, Any], str | None, bool]]] | None = None

    async def check(self) -> None:
        """Fetch the model's file and start its server, if necessary.

        Raises:
            ModelError: if a requirement is missing. The message contains advice.
        """
        await self._ready()

    @property
    def writes_calls(self) -> bool:
        """True if the model's row in `table.py` says that its calls must be written as text."""
        return isinstance(self._source, ListedSource) and self._source.model.writes_calls

    def served_by(self) -> Mapping[str, Any]:
        return self._served.facts if self._served else {}

    def introduction(self) -> str:
        if self._served is None:
            return ""
        facts = self._served.facts
        usual = ", ".join(f"{name} {value:g}" for name, value in self._sampling.items())
        sampling = f" Unless you set others, its sampling settings are {usual}." if usual else ""
        return (
            f"A real model, on this machine: {facts['title'] or facts['file']} ({facts['file']}, "
            f"{format_size(facts['size'])}, sha256 {facts['sha256'][:16]}), served by {facts['engine']} with "
            f"{format_count(facts['context'])} tokens of context and {plural(facts['threads'], 'thread')}.{sampling}"
        )

    def log_to(self, folder: Path) -> None:
        self._logs.add(folder / SERVER_LOG)
        self._place_logs()

    def end_log(self, folder: Path) -> None:
        self._logs.discard(folder / SERVER_LOG)
        if self._served is not None:
            self._served.server.end_log(folder / SERVER_LOG)

    def _place_logs(self) -> None:
        if self._served is not None:
            for path in self._logs:
                self._served.server.log_to(path)

    def recall(
        self, learned: Mapping[str, Any], replies: Iterable[tuple[dict[str, Any], str | None, bool]]
    ) -> None:
        self._recalled = learned, list(replies)
        if self._served is not None:
            self._served.model.recall(*self._recalled)

    async def context_limit(self) -> ContextLimit | None:
        """Return the context limit of the server, or None if the server was not started yet."""
        return ContextLimit(self._served.server.plan.context, True) if self._served else None

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Send one request. A server that has ended is started again first.

        Raises:
            ContextOverflowError: if the conversation does not fit.
            ModelError: after any other failure. The kind is `tools` if the model's chat template does not support
                tools.
        """
        served = await self._ready()
        if tools and not served.server.takes_tools:
            raise ModelError(
                f"{self.name} does not accept tools (its chat template has no place for them): let it write its calls "
                "as text.",
                kind="tools",
            )
        limit = served.server.plan.context // REPLY_SHARE
        tokens = limit if settings.max_tokens is None else min(settings.max_tokens, limit)
        unset = {name: value for name, value in self._sampling.items() if getattr(settings, name) is None}
        settings = dataclasses.replace(settings, max_tokens=tokens, **unset)
        served.server.requests += 1
        try:
            reply = await served.model.reply(messages, tools, settings, on_delta)
        except ModelError as error:
            if served.server.alive:
                raise
            raise ModelError(
                f"The server of {self.name} {served.server.ending()}: it is started again.",
                kind="connection",
                retryable=True,
            ) from error
        finally:
            served.server.requests -= 1
        free = None if reply.usage is None else reply.usage.model_copy(update={"cost": 0.0})
        return dataclasses.replace(reply, usage=free)

    async def _ready(self) -> _Served:
        if self._served is not None and self._served.server.alive:
            return self._served
        stop = Stop()
        try:
            self._served = await in_daemon_thread(self._start, stop, name="start-local-model")
        finally:
            stop.set()
            show("")
        if self._recalled is not None:
            self._served.model.recall(*self._recalled)
        self._place_logs()
        return self._served

    def _start(self, stop: Stop) -> _Served:
        if problem := missing_extra():
            raise ModelError(problem, kind="setup")
        self._source.check()
        file = self._source.fetch(stop)
        header = read_header(file)
        files = part_files(file, header)
        sums = [known_sum(part, self.name, stop) for part in files]
        server = serve(file, self.name, header, stop)
        listed = self._source.model if isinstance(self._source, ListedSource) else None
        facts = {
            "file": file.name,
            # The first of several files may have no weights, so the sum is that of the list of all sums.
            "sha256": sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest(),
            "size": sum(part.stat().st_size for part in files),
            "title": listed.title if listed else header.title,
            "licence": listed.licence if listed else "",
            "engine": f"xllamacpp {server.engine}",
            "context": server.plan.context,
            "threads": server.plan.threads,
        }
        access = Access(f"{server.address.rstrip('/')}/v1", server.key)
        return _Served(RemoteModel(self.name, access, send_reasoning=self._send_reasoning), server, facts)
