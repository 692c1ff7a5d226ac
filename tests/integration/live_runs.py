"""Cells of a server's kernels, whose runs a test follows and controls over REST."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent_scripts import script_text
from jupyter_process import JupyterProcess
from support import PATIENCE, until

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.journal import read_journal

API = "llm-sandbox/api/runs"
T = TypeVar("T")


def found(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something."""
    kept: list[T] = []

    def seen() -> bool:
        value = look()
        kept.extend([value] if value else [])
        return bool(kept)

    until(seen, "it did not come")
    return kept[0]


class Cell:
    """A `%%sandbox` cell with nobody to ask in it, executed in a thread."""

    def __init__(
        self, server: JupyterProcess, kernel_id: str, *turns: dict[str, Any], options: str = ""
    ) -> None:
        path = server.root / f"{time.monotonic_ns()}.yaml"
        path.write_text(script_text(*turns), "utf-8")
        self.server, self.kernel_id = server, kernel_id
        self.code = f"%%sandbox -m scripted/{path} --isolation process -o run {options}\nWork."
        self.reply: dict[str, Any] | None = None
        self.shown: list[dict[str, Any]] = []
        self.begun = time.monotonic()
        self.ended = 0.0
        self._thread = threading.Thread(target=self._execute, daemon=True)
        self._thread.start()

    def _execute(self) -> None:
        with contextlib.suppress(TimeoutError), self.server.client(self.kernel_id) as client:
            client.execute_interactive("%load_ext llm_sandbox_nb", timeout=PATIENCE, allow_stdin=False)
            self.reply = client.execute_interactive(
                self.code, output_hook=self._hook, timeout=2 * PATIENCE, allow_stdin=False
            )["content"]
            self.ended = time.monotonic()

    def _hook(self, message: dict[str, Any]) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.shown.append(message["content"]["data"])

    def wait(self, timeout: float = 2 * PATIENCE) -> dict[str, Any]:
        self._thread.join(timeout)
        assert self.reply is not None, "the cell hangs"
        return self.reply

    @functools.cached_property
    def id(self) -> str:
        def live() -> Any:
            runs = [one for one in self.server.get(API)["runs"] if one["state"] == "live"]
            return next((one["id"] for one in reversed(runs) if one["kernel_id"] == self.kernel_id), None)

        return str(found(live))

    @property
    def state(self) -> dict[str, Any]:
        model: dict[str, Any] = self.server.get(f"{API}/{self.id}")
        return model

    @property
    def folder(self) -> Path:
        [journal] = self.server.folder.rglob(f"{self.id}/journal.jsonl")
        return journal.parent

    def run(self) -> Run:
        return Run.load(self.folder)

    def decide(self, **body: Any) -> tuple[int, Any]:
        """Ask for something; status and answer."""
        return self.server.ask(f"{API}/{self.id}/control", "POST", body)

    def control(self, action: str, **more: Any) -> Any:
        status, answer = self.decide(action=action, **more)
        assert status == 200, answer
        return answer

    def held(self, at: str, but: str | None = None) -> dict[str, Any]:
        """The call that waits there, as soon as one does that is not `but`."""

        def look() -> dict[str, Any] | None:
            held: dict[str, Any] | None = self.state["held"]
            return held if held and held["at"] == at and held["call_id"] != but else None

        return found(look)

    def noted(self, action: str) -> bool:
        return any(getattr(event, "action", "") == action for event in read_journal(self.folder))

    def pause_in_step_1(self, go: Path) -> None:
        """Pause a run whose first command waits for `go`; it is held before its next request."""
        until(lambda: self.state["steps"] == 1)
        self.control("pause")
        until(lambda: self.noted("pause"))
        go.touch()
        until(lambda: self.noted("paused") and self.state["paused"])


def gate(server: JupyterProcess) -> tuple[Path, str]:
    go = server.root / f"go-{time.monotonic_ns()}"
    return go, f"until [ -e {go} ]; do sleep 0.05; done"


def journal_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(event.model_dump_json()) for event in read_journal(folder)]
