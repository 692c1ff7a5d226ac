"""The state of a new sandbox, to which a used sandbox can be reset. A check then shows if the reset was complete."""

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
    """State of a sandbox before its first command: a checkpoint of the files, and texts about all other state."""

    history: Path
    """Folder of a history whose only checkpoint is `checkpoint`."""
    checkpoint: str
    facts: Mapping[str, str]
    """Result of `ChannelSandbox.renew`."""

    @classmethod
    async def of(cls, box: ChannelSandbox, history: Path) -> FreshState:
        """Store the state of a sandbox in which no command has run. The checkpoint is in the folder `history`.

        Raises:
            SandboxError, OSError: if the state cannot be stored.
        """
        facts = await box.renew()
        await box.keep_history(history)
        return cls(history, await box.checkpoint(), facts)

    async def put_back(self, box: ChannelSandbox) -> str:
        """Reset everything in a used sandbox that commands can change: files, shell, processes and other state.

        Returns:
            A sentence about a difference that remains. Empty if there is no difference.

        Raises:
            SandboxError, OSError: if the files cannot be restored.
        """
        restored = await box.restore(self.checkpoint)
        await box.keep_history(self.history)
        if restored.problems:
            return restored.problems[0]
        facts = await box.renew()
        changed = [name for name in {**self.facts, **facts} if self.facts.get(name) != facts.get(name)]
        if changed:
            return f"A task has changed state that no checkpoint covers: {', '.join(changed)}."
        # No process of a command runs any more, so no file can change after this check.
        if await box.checkpoint() != self.checkpoint:
            return "The files differ from those of the first checkpoint."
        return ""


def why_not_renewable(box: Sandbox) -> str:
    """Return a sentence with the reason why a check cannot show that this sandbox was reset. Empty if it can."""
    isolation = ISOLATIONS[box.protection.isolation]
    if not isolation.isolates:
        return (
            f"Isolation {isolation.name!r} does not prevent commands from changing other files and processes."
        )
    if not isinstance(box, ChannelSandbox):
        return "Another process holds this sandbox."
    if box.network is not None:
        return "A person may allow this sandbox more hosts while a task runs."
    if "kernel keys" not in closed_and_open(box.executor.get("calls"))[0]:
        return "The kernel's key rings can be used in this sandbox, and no checkpoint covers them."
    return ""
