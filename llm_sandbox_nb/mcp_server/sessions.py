"""The sessions of clients that begin with a handshake, as all did before 2026-07-28."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_sandbox_nb.mcp_server.messages import Id, Json, RpcMessage

MOST_SESSIONS = 200
"""Of one server; the one that is unused longest makes room."""
IDLE = 24 * 3600.0
"""Seconds after which an unused session ends."""


@dataclass(frozen=True)
class ClientFacts:
    """What a client says of itself. Nothing is allowed because of it."""

    name: str = "an MCP client"
    version: str = ""
    elicits: bool = False
    """Whether it can ask its person a question."""

    @classmethod
    def read(cls, info: object, capabilities: object) -> ClientFacts:
        """From its `clientInfo` and its capabilities."""
        info = info if isinstance(info, dict) else {}
        names = [str(info.get(key) or "") for key in ("name", "version")]
        name, version = ("".join(one for one in text if one.isprintable())[:60] for text in names)
        can = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
        # An empty object means forms, as it did before there were other modes.
        elicits = isinstance(can, dict) and (not can or "form" in can)
        return cls(name or cls.name, version, elicits)


@dataclass
class McpSession:
    """One client between its handshake and its end."""

    id: str
    principal: str
    client: ClientFacts
    version: str
    used: float
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asked: dict[Id, asyncio.Future[Json | None]] = field(default_factory=dict)

    def ask(self) -> tuple[str, asyncio.Future[Json | None]]:
        """The id of a new question to the client, and its answer to come; None for a refusal."""
        id = f"ask-{next(self._numbers)}"
        self._asked[id] = asyncio.get_running_loop().create_future()
        return id, self._asked[id]

    def forget(self, id: str) -> None:
        """Nobody waits for this answer any more."""
        self._asked.pop(id, None)

    def take(self, message: RpcMessage) -> bool:
        """Take an answer; says whether it was asked for."""
        asked = self._asked.pop(message.id, None) if message.id is not None else None
        if asked is None or asked.done():
            return False
        asked.set_result(message.result)
        return True

    def close(self) -> None:
        """The session ends, and with it all that waits for its client."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()


class Sessions:
    """The sessions of one server. A session is of the caller who began it, and of no other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, McpSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, principal: str, client: ClientFacts, version: str) -> McpSession:
        """A new session."""
        now = self._clock()
        for one in [one for one in self._sessions.values() if now - one.used > IDLE]:
            self.end(one)
        while len(self._sessions) >= MOST_SESSIONS:
            self.end(min(self._sessions.values(), key=lambda one: one.used))
        session = McpSession(secrets.token_hex(24), principal, client, version, now)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, principal: str) -> McpSession | None:
        """The session with this id, if it is this caller's."""
        session = self._sessions.get(id)
        if session is None or session.principal != principal or self._clock() - session.used > IDLE:
            return None
        session.used = self._clock()
        return session

    def end(self, session: McpSession) -> None:
        """End a session."""
        self._sessions.pop(session.id, None)
        session.close()

    def end_all_of(self, principal: str) -> None:
        """End all sessions of a caller, whose token was revoked."""
        for one in [one for one in self._sessions.values() if one.principal == principal]:
            self.end(one)
