"""Long work in a small context: sixty steps whose answer needs steps 1 and 58, with servers that refuse or cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_scripts import check_messages
from small_context_server import SmallContextServer, Words
from support import run as in_loop

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev

INPUTS = {"first.txt": b"first=48151\n", "late.txt": b"late=62342\n"}
ANSWER = "48151 and 62342"
MOST_REQUESTS = 1.1
"""For each step."""


async def solved(server: SmallContextServer, folder: Path, **more: Any) -> Run:
    given = {"limits": {"steps": server.steps}, "settings": {"max_tokens": 65_536}} | more
    return await solve(
        "Run the sixty commands, then save what the first and the late file say.",
        model="openai/small", api_base=server.url, isolation="process", inputs=INPUTS, output_dir=folder, **given,
    )  # fmt: skip


def of_kind(run: Run, kind: type[Any]) -> list[Any]:
    return [event for event in run.trajectory.path if isinstance(event, kind)]


def check_sent(server: SmallContextServer, run: Run) -> None:
    """The record says what was sent, and each request is valid."""
    for body in server.requests:
        check_messages([*body["messages"], {"role": "assistant", "content": "end"}])
    sent = server.requests[-1]["messages"]
    assert [message["content"] for message in run.messages[: len(sent)]] == [one["content"] for one in sent]
    assert Run.load(run.folder).messages == run.messages


@pytest.mark.parametrize("limit", [4096, 8192, 16_384])
@pytest.mark.parametrize(("words", "tells"), [("llama.cpp", False), ("vllm", False), ("vllm", True)])
def test_sixty_steps_reach_their_end(tmp_path: Path, limit: int, words: Words, tells: bool) -> None:
    with SmallContextServer(limit, words, tells=tells) as server:
        run = in_loop(solved(server, tmp_path), timeout=200)
    assert (run.stop_reason, run.answer) == ("submitted", ANSWER)
    assert len(run.steps) >= 60
    assert len(server.requests) / len(run.steps) <= MOST_REQUESTS, server.refused
    known = of_kind(run, ev.ContextKnown)
    assert [(one.tokens, one.source) for one in known] == [(limit, "server" if tells else "refusal")]
    assert not tells or server.refused == 0
    check_sent(server, run)
