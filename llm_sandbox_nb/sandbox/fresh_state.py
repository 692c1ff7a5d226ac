"""A new sandbox's state, to which a used one is put back, with the proof that it is as new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_sandbox_nb.sandbox.client import ChannelSandbox
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.sandbox.protocol.answers import closed_and_open


@dataclass(frozen=True)
class FreshState:
    """The first checkpoint of a sandbox, and its state beyond its files, before any command ran in it."""

    history: Path
    """A folder that holds that checkpoint and no other."""
    checkpoint: str
    facts: Mapping[str, str]
    """See `ChannelSandbox.renew`."""

    @classmethod
    async def of(cls, box: ChannelSandbox, history: Path) -> FreshState:
        """The state of a sandbox in which nothing has run yet; `history` is for its first checkpoint.

        Raises:
            SandboxError, OSError: it cannot be kept.
        """
        facts = await box.renew()
        await box.keep_history(history)
        return cls(history, await box.checkpoint(), facts)

    async def put_back(self, box: ChannelSandbox) -> str:
        """Make a used sandbox as new: its files, shell, processes and everything else that commands can change.

        Returns:
            Why it is not as new, in a sentence; empty when it is, which was checked and not only ordered.

        Raises:
            SandboxError, OSError: its files cannot be put back.
        """
        restored = await box.restore(self.checkpoint)
        await box.keep_history(self.history)
        if restored.problems:
            return restored.problems[0]
        facts = await box.renew()
        changed = [name for name in {**self.facts, **facts} if self.facts.get(name) != facts.get(name)]
        if changed:
            return f"A task has changed what no checkpoint covers: {', '.join(changed)}."
        # Nothing runs in it any more, so what this look at its files finds stays as it is.
        if await box.checkpoint() != self.checkpoint:
            return "Its files are not those of its first checkpoint."
        return ""


def why_not_renewable(box: Sandbox) -> str:
    """Why a used sandbox can never be shown to be as new, in a sentence; empty when it can."""
    isolation = ISOLATIONS[box.protection.isolation]
    if not isolation.isolates:
        return f"Isolation {isolation.name!r} does not keep commands from changing other files and processes."
    if not isinstance(box, ChannelSandbox):
        return "Another process holds this sandbox."
    if box.network is not None:
        return "A person may allow it more hosts while a task runs."
    if "kernel keys" not in closed_and_open(box.executor.get("calls"))[0]:
        return "The kernel's key rings can be used in it, and no checkpoint covers them."
    return ""
