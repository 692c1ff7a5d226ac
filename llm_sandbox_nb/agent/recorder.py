"""Recorder of a run. Each event is written to the journal, added to the trajectory, and passed to the listeners."""

from __future__ import annotations

import asyncio
import codecs
import functools
import logging
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.known_keys import has_key, knows_keys, without_keys
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.contract import StreamName
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.rules import Rule
from llm_sandbox_nb.trajectory.facts import FactFinder
from llm_sandbox_nb.trajectory.journal import Journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory
from llm_sandbox_nb.version import __version__

Listener = Callable[[ev.Event], None]
"""Function that gets each event, even an event that the journal omits. It is called in the loop's thread, so it must
not block."""

logger = logging.getLogger(__name__)
_MAX_INLINE_STORE_BYTES = 256 * 1024
"""Maximum bytes of an output that is stored in the event loop. A larger output would block the loop, so a thread stores
it."""
_SECRET_NAME = re.compile(r"key|token$|secret|password|passwd|authorization|credential|cookie", re.IGNORECASE)
_UNSAFE_IN_FILE_NAME = re.compile(r"[/\\\x00-\x1f\x7f]+")


class Recorder:
    """Writer of a run's record in `folder`."""

    def __init__(
        self, folder: Path, listeners: Iterable[Listener] = (), trajectory: Trajectory | None = None
    ) -> None:
        """Create the recorder. `trajectory` has the events that the journal in `folder` already contains.

        Raises:
            JournalError: if the journal cannot be written, or if another process writes it.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.trajectory = trajectory or Trajectory()
        self._listeners = list(listeners)
        self._facts = FactFinder(self.trajectory)

    def use_rules(self, rules: Sequence[Rule]) -> None:
        """Also use the user's rules to find doubts (reasons why the result may be wrong) at the end of the run."""
        self._facts = FactFinder(self.trajectory, rules)

    def emit(self, event: ev.Event) -> None:
        """Record an event, and call the listeners. API keys of providers are removed from the event.

        `FactFinder` may add further events before or after `event`: lines that sum up a step, and doubts.

        Raises:
            JournalNotWrittenError: if the event cannot be written, for example because the disk is full.
        """
        for facts in self._facts.before(event):
            self._record(facts)
        self._record(event)
        for facts in self._facts.after(event):
            self._record(facts)

    def _record(self, event: ev.Event) -> None:
        if knows_keys() and has_key([line := ev.dump_event(event)]):
            event = ev.parse_event(without_keys(line))
        if not ev.is_transient(event):
            event.parent = event.parent or self.trajectory.head
            self.journal.append(event)
        self.trajectory.add(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                # a listener that fails must not end the run
                logger.exception("a listener failed at %s and gets no more events", type(event).__name__)
                self._listeners.remove(listener)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each event from now on."""
        self._listeners.append(listener)

    async def store(self, data: bytes) -> ev.Text:
        """Return output in the form for a field of an event: short text as text, other output as a stored `Blob`."""
        if len(data) <= _MAX_INLINE_STORE_BYTES:
            return self.journal.store_bytes(data)
        return await asyncio.to_thread(self.journal.store_bytes, data)

    def close(self) -> None:
        self.journal.close()


class LiveOutput:
    """Converter of a call's output to events that the journal omits.

    A character whose bytes come in two pieces of output is kept whole.
    """

    def __init__(self, call_id: str, emit: Callable[[ev.Event], None]) -> None:
        self._call_id = call_id
        self._emit = emit
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def __call__(self, stream: StreamName, data: bytes) -> None:
        """Emit a piece of output. The sandbox calls this method as `on_output`."""
        if text := self._decoders[stream].decode(data):
            self._emit(ev.CallOutput(call_id=self._call_id, stream=stream, text=text))


def new_run_folder(parent: Path, name: str | None) -> Path:
    """Make the folder `<parent>/<name>/<YYYYmmdd-HHMMSS>-<id>`. If there is no name, the part `<name>/` is omitted.

    The id begins with the fraction of the second, so that sorting folders by name sorts them by time.

    Raises:
        InputError: if the folder cannot be made.
    """
    part = _UNSAFE_IN_FILE_NAME.sub("-", name).strip(". ")[:120] if name else ""
    now = time.time()
    second, fraction = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)), int(now % 1 * 0x10000)
    folder = expanded(parent).absolute() / part / f"{second}-{fraction:04x}{secrets.token_hex(2)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except OSError as error:
        if folder.exists():
            return new_run_folder(parent, name)
        raise InputError(
            f"The run's folder cannot be made in {parent} ({error.strerror}): choose another output folder."
        ) from error
    return folder


def public_settings(value: Any) -> Any:
    """Return `value` with "(not recorded)" in place of each text whose key looks like the name of a secret."""
    if isinstance(value, Mapping):
        return {
            str(key): "(not recorded)"
            if _SECRET_NAME.search(str(key)) and isinstance(item, str)
            else public_settings(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [public_settings(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Return the versions of this package, of Python, and of an installed LiteLLM."""
    found = {"llm-sandbox-nb": __version__, "python": platform.python_version()}
    if litellm := _installed("litellm"):
        found["litellm"] = litellm
    return found


@functools.cache
def _installed(package: str) -> str | None:
    try:  # the result is cached, because a lookup is slow compared with a short run
        return version(package)
    except PackageNotFoundError:
        return None
