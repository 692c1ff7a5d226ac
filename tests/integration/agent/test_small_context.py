"""Long work in a small context: sixty steps whose answer needs steps 1 and 58, with servers that refuse or cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_scripts import check_messages
from small_context_server import SmallContextServer, Words
from support import run as in_loop

from llm_sandbox_nb.cli import main
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
    for body in server.requests:
        check_messages([*body["messages"], {"role": "assistant", "content": "end"}])
    sent = server.requests[-1]["messages"]
    assert [message["content"] for message in run.messages[: len(sent)]] == [one["content"] for one in sent]
    assert Run.load(run.folder).messages == run.messages


SERVERS = [("llama.cpp", False), ("vllm", False), ("vllm", True)]
LIMITS = [4096, 8192, 16_384]
USUAL = (4096, "llama.cpp", False)


@pytest.mark.parametrize(
    ("limit", "words", "tells"),
    [
        pytest.param(limit, *server, marks=[] if (limit, *server) == USUAL else pytest.mark.campaign)
        for limit in LIMITS
        for server in SERVERS
    ],
)
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


def test_a_summary_by_the_model_reaches_the_end_too(tmp_path: Path) -> None:
    with SmallContextServer(8192, "vllm", tells=True) as server:
        run = in_loop(solved(server, tmp_path, context="summary"), timeout=200)
    assert (run.stop_reason, run.answer) == ("submitted", ANSWER)
    reduced = of_kind(run, ev.ContextReduced)
    assert reduced
    summaries = [one for one in reduced if one.how == "summary"]
    assert len(summaries) > 2
    assert len(reduced) - len(summaries) <= 2, "one output is larger than what a summary makes room for"
    assert all(one.usage and one.usage.prompt_tokens for one in summaries)
    assert run.trajectory.total_usage.prompt_tokens == sum(server.counts)
    assert server.refused == 0
    check_sent(server, run)


@pytest.mark.parametrize("tells", [pytest.param(True, marks=pytest.mark.campaign), False])
def test_a_server_that_leaves_out_the_beginning_silently(tmp_path: Path, tells: bool) -> None:
    """Ollama tells the context of a loaded model; where it does not, the count that falls gives it away."""
    with SmallContextServer(8192, "ollama", tells=tells) as server:
        run = in_loop(solved(server, tmp_path), timeout=200)
    assert (run.stop_reason, run.answer) == ("submitted", ANSWER)
    [known] = of_kind(run, ev.ContextKnown)
    warned = [note for note in run.trajectory.notes if "Raise num_ctx" in note]
    if tells:
        assert (known.tokens, known.source, warned) == (8192, "server", [])
    else:
        assert (4096 < known.tokens <= 8192, known.source, len(warned)) == (True, "cut", 1)
    assert sum(map(bool, server.left_out)) <= (0 if tells else 3), "what is sent fits from then on"


def test_full_ends_with_a_last_turn_and_the_right_limit(tmp_path: Path) -> None:
    with SmallContextServer(8192, "vllm", tells=True) as server:
        run = in_loop(solved(server, tmp_path, context="full"), timeout=200)
    assert run.stop_reason == "tokens"
    assert "8192 tokens that openai/small can take in" in str(run.error)
    assert "this is your last turn" in server.requests[-1]["messages"][-1]["content"]
    assert server.refused == 0
    assert run.trajectory.state(live=False).words == "The model's context is full"


def test_a_rewind_a_resume_and_a_fork_send_what_was_sent_and_know_the_limit(tmp_path: Path) -> None:
    async def body(server: SmallContextServer) -> None:
        server.steps = 40
        run = await solved(server, tmp_path, limits={"steps": 40})
        assert run.stop_reason == "steps"
        step = next(one.step for one in of_kind(run, ev.ContextReduced) if one.step > 10)
        asked = [one for one in of_kind(run, ev.ModelRequested) if one.step == step]
        sent = run.trajectory.at(asked[-1].id)
        loaded = Run.load(run.folder)
        fork = await loaded.fork(step, isolation="process")
        assert fork.messages[: len(list(sent.messages()))] == list(sent.messages())
        assert fork.trajectory.context_limit("openai/small") == run.trajectory.context_limit("openai/small")
        await fork.close()
        refused, server.steps = server.refused, 100
        again = await loaded.resume(
            limits={"steps": 100}, isolation="process", model="openai/small", api_base=server.url
        )
        assert (again.stop_reason, again.answer) == ("submitted", ANSWER)
        assert server.refused == refused, "the limit is in the record"
        check_sent(server, again)

    with SmallContextServer(8192, "vllm") as server:
        in_loop(body(server), timeout=300)


def test_the_command_line_says_what_was_learned_and_what_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for name, content in INPUTS.items():
        (given / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with SmallContextServer(8192, "llama.cpp") as server:
        options = [
            "--model",
            "openai/small",
            "--api-base",
            server.url,
            "--isolation",
            "process",
            "-i",
            str(given),
        ]
        assert main(["run", *options, "--context", "mask", "Run the sixty commands."]) == 0
    said = capsys.readouterr().out
    assert "note: openai/small can take in 8,192 tokens" in said
    assert "note: the conversation nearly fills the model's 8,192 tokens: from now on" in said
    assert ANSWER in said
