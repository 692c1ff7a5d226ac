"""The message history: one writer, which records each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_sandbox import MemorySandbox, spec_of, workspace_of
from support import run
from talking_replies import called, said

from llm_sandbox_nb.agent import conversation as conversation_module
from llm_sandbox_nb.agent.conversation import Conversation
from llm_sandbox_nb.agent.conversation_state import conversation_state
from llm_sandbox_nb.agent.loop import Loop
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.model.contract import Reply
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


LOOKS = called(1, "execute_bash", "I look.", command="ls")
BLOCK = "```bash\nls\n```"


@pytest.mark.parametrize(
    ("replies", "setting", "text", "talks"),
    [
        ([LOOKS, called(2, "submit", "It is 3.")], "auto", "It is 3.", False),
        ([LOOKS, called(2, "submit")], "auto", "I look.", False),
        ([said("It is 3."), called(1, "submit")], "auto", "It is 3.", False),
        ([called(1, "execute_bash", command="ls"), said("It is 3.")], "auto", "It is 3.", True),
        ([called(1, "execute_bash", command="ls")], "auto", "", False),
        ([said(f"I look.\n{BLOCK}"), said("It is 3.\n```bash\nsubmit\n```")], "text", "It is 3.", False),
        ([said(f"I look.\n{BLOCK}"), said("It is 3.")], "text", "It is 3.", True),
    ],
)  # fmt: skip
def test_a_restored_conversation_knows_the_texts_that_may_be_the_answer(
    replies: list[Reply], setting: Any, text: str, talks: bool, tmp_path: Path
) -> None:
    def facts(conversation: Conversation) -> tuple[object, ...]:
        return conversation.last_text, conversation.only_talked, conversation.has_answer_text

    async def work() -> None:
        recorder = Recorder(tmp_path)
        model = make_model("scripted/strawberry")
        spec, workspace = spec_of(model, tool_calls=setting), workspace_of(MemorySandbox(), recorder)
        loops = [Loop(spec, recorder, Meter(RunLimits()), workspace) for _ in range(2)]
        loops[0].start([{"role": "system", "content": "s"}, {"role": "user", "content": "How many?"}])
        live = loops[0].conversation
        live.add_user_message([])
        for number, reply in enumerate(replies, 1):
            loops[0].meter.step = number
            live.add_reply(loops[0].form.read(reply, live.outputs, live.task), model, 0.0)
            live.propose_calls()
        loops[1].restore(conversation_state(recorder.trajectory))
        assert facts(loops[1].conversation) == facts(live)
        assert facts(live)[:2] == (text, talks)
        recorder.emit(ev.RunFinished(stop_reason="steps", answer=None))
        loops[1].restore(conversation_state(recorder.trajectory))
        assert facts(loops[1].conversation) == ("", False, False)

    run(work())
