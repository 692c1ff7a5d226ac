"""Who watches a run gets all of its events, also those that come while others are being sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from llm_sandbox_nb.server.run_handlers import RunEventsHandler
from llm_sandbox_nb.server.runs import PublishedRun

EVENTS = [{"kind": "run.started", "id": "a"}, {"kind": "noted", "id": "b"}]
END = {"kind": "run.finished", "id": "c", "stop_reason": "submitted"}


class Watcher:
    """Takes messages; the run ends while it takes number `during`."""

    def __init__(self, run: PublishedRun, during: int) -> None:
        self.run = run
        self.during = during
        self.messages: list[dict[str, Any]] = []

    def write_message(self, text: str) -> asyncio.Task[None]:
        async def take() -> None:
            await asyncio.sleep(0)
            if len(self.messages) == self.during:
                self.run.take(len(EVENTS), [END])
            self.messages.append(json.loads(text))

        return asyncio.ensure_future(take())


@pytest.mark.parametrize("during", [0, 1])
def test_a_run_that_ends_while_something_is_sent_is_sent_to_its_end(during: int) -> None:
    async def watch() -> Watcher:
        run = PublishedRun("r", "k", "secret", full_at=1 << 20)
        run.take(0, EVENTS)
        watcher = Watcher(run, during)
        news = asyncio.Event()
        run.watchers.add(news.set)
        await asyncio.wait_for(RunEventsHandler._send_all(watcher, run, 0, news), 30)  # type: ignore[arg-type]
        return watcher

    watcher = asyncio.run(watch())
    sent = [event for message in watcher.messages for event in message.get("events", ())]
    assert sent == [*EVENTS, END]
    assert watcher.messages[-1] == {"type": "state", "state": "finished"}
