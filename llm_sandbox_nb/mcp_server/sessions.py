"""Sessions of clients that begin with a handshake. Clients since 2026-07-28 have no session."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_sandbox_nb.mcp_server.messages import Id, Json, RpcMessage

MAX_SESSIONS = 200
"""Maximum number of sessions. One more session ends the least recently used session, preferably of the same caller."""
IDLE_SECONDS = 24 * 3600.0
"""Seconds after which an unused session ends."""
ANSWER_SECONDS = 300.0
"""Seconds in which the client's user may answer a question."""


@dataclass(frozen=True)
class ClientFacts:
    """Name and abilities of a client. The client claims them, so no permission depends on them."""

    name: str = "an MCP client"
    version: str = ""
    elicits: bool = False
    """True if the client can ask its user a question."""

    @classmethod
    def read(cls, info: object, capabilities: object) -> ClientFacts:
        """Return the facts in a client's `clientInfo` and capabilities. Values of wrong types are ignored."""
        info = info if isinstance(info, dict) else {}
        names = [str(info.get(key) or "") for key in ("name", "version")]
        name, version = ("".join(filter(str.isprintable, text))[:60] for text in names)
        modes = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
        # An empty object means that the client can show forms, which were the only mode in older versions.
        elicits = isinstance(modes, dict) and (not modes or "form" in modes)
        return cls(name or cls.name, version, elicits)


@dataclass
class McpSession:
    """Session of a client, from the client's handshake to the end of the session."""

    id: str
    principal: str
    client: ClientFacts
    used: float
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asked: dict[Id, asyncio.Future[Json | None]] = field(default_factory=dict)

    async def elicit(self, params: Json, send: Callable[[Json], None]) -> Json | None:
        """Send a question to the client's user and return the answer, or None if the client fails or is late."""
        id = f"ask-{next(self._numbers)}"
        answer = self._asked[id] = asyncio.get_running_loop().create_future()
        send({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params})
        try:
            return await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            return None
        finally:
            self._asked.pop(id, None)

    def take_answer(self, message: RpcMessage) -> bool:
        """Deliver the client's answer to a waiting question. Return False if no question has the id of the answer."""
        asked = self._asked.pop(message.id, None) if message.id is not None else None
        if asked is None or asked.done():
            return False
        asked.set_result(message.result)
        return True

    def close(self) -> None:
        """End the session and cancel all questions that wait for its client."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()


class Sessions:
    """Sessions of one server. A caller can find only its own sessions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, McpSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, principal: str, client: ClientFacts) -> McpSession:
        now = self._clock()
        for idle in [session for session in self._sessions.values() if now - session.used > IDLE_SECONDS]:
            self.end(idle)
        while len(self._sessions) >= MAX_SESSIONS:
            others = self._sessions.values()
            self.end(min(others, key=lambda session: (session.principal != principal, session.used)))
        session = McpSession(secrets.token_hex(24), principal, client, now)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, principal: str) -> McpSession | None:
        """Return the caller's session with this id, or None if the session has ended or belongs to another caller."""
        session = self._sessions.get(id)
        if session is None or session.principal != principal or self._clock() - session.used > IDLE_SECONDS:
            return None
        session.used = self._clock()
        return session

    def end(self, session: McpSession) -> None:
        self._sessions.pop(session.id, None)
        session.close()

    def end_all_of(self, principal: str) -> None:
        """End all sessions of a caller whose token was revoked."""
        for session in [session for session in self._sessions.values() if session.principal == principal]:
            self.end(session)
