"""The message history: one writer, which records each change."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from support import run
from talking_replies import said

from llm_sandbox_nb.agent import conversation as conversation_module
from llm_sandbox_nb.agent.conversation import Conversation
from llm_sandbox_nb.agent.limits import Meter, RunLimits
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.trajectory import events as ev


def conversation_in(folder: Path) -> Conversation:
    """A conversation that begins with a task, for a model that writes its calls as text."""

    async def begin() -> Conversation:
        recorder = Recorder(folder)
        spec = spec_of(make_model("scripted/strawberry"))
        loop = Loop(spec, recorder, Meter(RunLimits()), workspace_of(MemorySandbox(), recorder))
        loop.start([{"role": "system", "content": "s"}, {"role": "user", "content": "How many?"}])
        loop.conversation.add_user_message([])
        return loop.conversation

    return run(begin())


def test_a_text_counts_as_sent_until_it_is_removed(tmp_path: Path) -> None:
    conversation = conversation_in(tmp_path)
    assert conversation.was_sent("How many?")
    assert not conversation.was_sent("Look again.")
    conversation.add_reply(said("Look again."), make_model("scripted/strawberry"), 0.0)
    assert not conversation.was_sent("Look again.")
    conversation.add_user_message(["Look   again."])
    assert conversation.was_sent("Look again.")
    shown = [ev.ShownInstead(at=3, content="removed")]
    conversation.reduce(
        ev.ContextReduced(
            step=1,
            how="mask",
            shown=shown,
            tokens_before=9,
            tokens_after=1,
            limit=9,
            removed_from=0,
            removed_to=0,
        )
    )
    assert not conversation.was_sent("Look again.")
    assert conversation.was_sent("removed")


def test_each_message_is_compared_with_replies_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(conversation_module, "own_words", lambda text: read.append(text) or text)
    conversation = conversation_in(tmp_path)
    for number in range(20):
        conversation.add_user_message([f"message {number}"])
        conversation.was_sent("x")
    assert read.count("message 0") == 1
