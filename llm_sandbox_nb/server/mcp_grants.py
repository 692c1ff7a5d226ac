"""Tokens for the use of sandboxes over MCP. Each sandbox has one revocable token. Only the token's hash is stored."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

PREFIX = "lsnb_"
_UNUSED_TOKEN_SECONDS = 90 * 24 * 3600.0
"""Seconds without use after which a token is revoked."""
_MAX_TOKEN_CHARACTERS = 200


@dataclass(frozen=True)
class Grant:
    """A token. Only the hash of its text is known."""

    name: str
    """Public name of the token in sessions and records."""
    digest: str
    sandbox_id: str
    notebook: str | None
    """Notebook of the sandbox. A new sandbox of the same notebook inherits the token."""
    created: float
    used: float


class McpGrants:
    """The tokens of a server, stored in a file that only the server's user can read."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._grants = {grant.name: grant for grant in self._read()}
        self.on_revoked: Callable[[str], None] = lambda name: None
        """Function that is called with the name of each revoked grant."""
        self.lives: Callable[[str], bool] = lambda sandbox_id: False
        """Function that returns True if a sandbox has not ended. Such a sandbox keeps its token, even if its notebook
        was renamed and a new notebook now has the earlier path."""

    def mint(self, sandbox_id: str, notebook: str | None) -> str:
        """Return a new token for a sandbox, and revoke the earlier token. The token cannot be read again."""
        self.revoke(sandbox_id, notebook)
        token, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        grant = Grant(secrets.token_hex(8), _digest(token), sandbox_id, notebook, now, now)
        self._grants[grant.name] = grant
        self._write()
        return token

    def keep(self, sandbox_id: str, notebook: str | None) -> Grant | None:
        """Return the grant of a sandbox. A new sandbox of a notebook gets the grant of the earlier sandbox.

        `notebook` is the current path of the notebook, under which the grant is stored from now on.
        """
        grant = self._of(sandbox_id, notebook)
        if grant is None:
            return None
        now = replace(grant, sandbox_id=sandbox_id, notebook=notebook or grant.notebook)
        if now != grant:
            self._grants[now.name] = now
            self._write()
        return now

    def find(self, token: str) -> Grant | None:
        """Return the grant of a token, or None for an unknown token."""
        if not token.startswith(PREFIX) or len(token) > _MAX_TOKEN_CHARACTERS:
            return None
        digest, found = _digest(token), None
        for grant in self._grants.values():
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        if found is not None and self._clock() - found.used > 3600:
            self._grants[found.name] = found = replace(found, used=self._clock())
            self._write()
        return found

    def revoke(self, sandbox_id: str, notebook: str | None = None) -> bool:
        """Revoke the token of a sandbox. Return True if there was a token."""
        grant = self._of(sandbox_id, notebook)
        if grant is None:
            return False
        del self._grants[grant.name]
        self._write()
        self.on_revoked(grant.name)
        return True

    def _of(self, sandbox_id: str, notebook: str | None) -> Grant | None:
        grants = self._grants.values()
        same = (grant for grant in grants if grant.sandbox_id == sandbox_id)
        before = (
            grant for grant in grants if grant.notebook == notebook and not self.lives(grant.sandbox_id)
        )
        return next(same, None) or (next(before, None) if notebook is not None else None)

    def _read(self) -> list[Grant]:
        try:
            found = [Grant(**grant) for grant in json.loads(self._file.read_bytes())]
            valid = [
                grant for grant in found if all(isinstance(text, str) for text in (grant.name, grant.digest))
            ]
            return [grant for grant in valid if self._clock() - grant.used < _UNUSED_TOKEN_SECONDS]
        except (OSError, ValueError, TypeError):
            return []

    def _write(self) -> None:
        """Write the file. If that fails, the tokens are valid only until this server ends."""
        partial = self._file.with_suffix(".partial")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump([asdict(grant) for grant in self._grants.values()], file)
            partial.replace(self._file)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
