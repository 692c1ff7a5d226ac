"""Recording of a run's network connections if its sandbox can reach only the hosts of an allow-list.

Each connection becomes an event of the run, up to a maximum per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.sandbox.contract import Connection, Network
from llm_sandbox_nb.trajectory import events as ev

MAX_EVENTS_PER_STEP = 50
"""Maximum number of connections in a step that have an event of their own. Further connections are only counted."""

logger = logging.getLogger(__name__)


class ConnectionRecord:
    """Recorder of a run's connections. `close` ends the recording."""

    def __init__(
        self, network: Network, recorder: Recorder, step: Callable[[], int], refused: Callable[[str], None]
    ) -> None:
        """Start recording.

        `step` returns the number of the current step. `refused` is called with the `host:port` of each refused
        connection.
        """
        self._network = network
        self._recorder = recorder
        self._step = step
        self._refused = refused
        self._counted = (-1, 0)
        network.on_connection = self._record

    def _record(self, connection: Connection) -> None:
        step, count = self._step(), 0
        if self._counted[0] == step:
            count = self._counted[1]
        else:
            self._record_others()
        self._counted = (step, count + 1)
        if count < MAX_EVENTS_PER_STEP:
            self._emit(connection_event(connection, step))
            if connection.decision == "refused" and connection.host and not connection.rule:
                self._refused(f"{_bracketed(connection.host)}:{connection.port}")

    def _record_others(self) -> None:
        """Record the number of connections in the newest step that have no event of their own."""
        step, count = self._counted
        self._counted = (step, min(count, MAX_EVENTS_PER_STEP))
        if (more := count - MAX_EVENTS_PER_STEP) > 0:
            self._emit(ev.ConnectionMade(step=step, line=f"and {more} more", more=more))

    def _emit(self, event: ev.ConnectionMade) -> None:
        try:
            self._recorder.emit(event)
        except OSError:  # the loop cannot record its next event either, and then ends the run
            logger.warning("a connection could not be recorded", exc_info=True)

    def close(self) -> None:
        """Stop recording. If the network has failed, record the failure as an event."""
        if self._network.on_connection == self._record:
            self._network.on_connection = None
        self._record_others()
        if self._network.closed:
            line = f"nothing was let through any more: {self._network.closed}"
            self._emit(ev.ConnectionMade(step=self._step() or None, line=line, decision="failed"))


def connection_event(connection: Connection, step: int) -> ev.ConnectionMade:
    """Convert a connection to an event."""
    return ev.ConnectionMade(
        step=step or None,
        line=connection_line(connection),
        host=connection.host,
        port=connection.port,
        decision=connection.decision,
        reason=connection.reason,
        rule=connection.rule,
        address=connection.address,
        secrets=connection.secrets,
        sent=connection.sent,
        received=connection.received,
        duration=connection.duration,
    )


def connection_line(connection: Connection) -> str:
    """Describe a connection: `example.org:443 · 2.1 MB`, or `refused: ten.example:22, private address`."""
    where = f"{_bracketed(connection.host)}:{connection.port}" if connection.host else "a request"
    if connection.decision != "allowed":
        return f"{connection.decision}: {where}, {connection.reason}"
    secrets = f" · with {', '.join(connection.secrets)}" if connection.secrets else ""
    return f"{where} · {format_size(connection.sent + connection.received)}{secrets}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
