"""Servers with a habit each: every reply arrives, and no request breaks the protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_variants import VARIANTS, Variant
from support import require, run
from variant_replies import FIRST, LAST, TWO_CALLS, Said, as_text, framed, hermes
from variant_server import VariantServer

from llm_sandbox_nb.agent.model_call import well_formed
from llm_sandbox_nb.agent.tools.arguments import parse_arguments
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.attempt import HowToAsk, with_one_reply
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.model.contract import Model, ModelSettings, Reply
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.trajectory import events as ev

USER = [{"role": "system", "content": "You work."}, {"role": "user", "content": "Look."}]
ALL_SETTINGS = ModelSettings(
    temperature=0.7, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, max_tokens=1000, timeout=20
)


@pytest.fixture(scope="module")
def server() -> Iterator[VariantServer]:
    with VariantServer() as server:
        yield server


async def converse(model: Model) -> tuple[Reply, Reply]:
    policy = RetryPolicy(first_wait=0.0, longest_wait=0.0)
    first = well_formed(await reply_with_retries(model, USER, TOOLS.schemas(), ALL_SETTINGS, policy=policy))
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in first.calls]
    nudge = [] if results else [{"role": "user", "content": "Go on."}]
    messages = [*USER, first.message, *results, *nudge]
    return first, well_formed(
        await reply_with_retries(model, messages, TOOLS.schemas(), ALL_SETTINGS, policy=policy)
    )


def check(reply: Reply, said: Said, variant: Variant) -> None:
    assert reply.text.strip() == said.text.strip()
    assert [(call.name, parse_arguments(call.arguments)) for call in reply.calls] == list(said.calls)
    if variant.reasoning:
        assert (reply.reasoning or "").strip() == said.reasoning


@pytest.mark.parametrize(
    "variant",
    [
        # `make test` reads a part, and tests/unit/model/test_server_replies.py has the property.
        pytest.param(one, id=one.name, marks=pytest.mark.campaign if number % 2 else ())
        for number, one in enumerate(VARIANTS)
    ],
)
def test_a_reply_is_not_lost(server: VariantServer, variant: Variant) -> None:
    before = len(server.violations)
    model = make_model("my-model", api_base=server.url_of(variant, "x"), api_key="key")
    first, last = run(converse(model))
    check(first, variant.first, variant)
    check(last, LAST, variant)
    assert server.violations[before:] == []
    assert len(server.requests(variant, "x")) == variant.requests


def text_server(native: bool) -> Variant:
    """The first reply has a call, or only text; the second has a call in its text."""

    def write(said: Said, number: int) -> bytes:
        if said is LAST:
            return as_text(lambda _: hermes(TWO_CALLS))(said, number)
        return framed()(said if native else Said("Hello.", ()), number)

    return Variant("calls in text later", write)


@pytest.mark.parametrize("native", [True, False])
def test_text_about_calls_is_text_when_the_model_has_calls_of_its_own(native: bool) -> None:
    variant = text_server(native)
    with VariantServer([variant]) as server:
        _, last = run(converse(make_model("m", api_base=server.url_of(variant, "x"), api_key="key")))
    assert [call.name for call in last.calls] == ([] if native else [name for name, _ in TWO_CALLS.calls])
    assert ("<tool_call>" in last.text) == native


@pytest.mark.parametrize(
    "name", ["ignores stream", "<tool_call> after <think>", "refuses stream and stream_options"]
)
def test_a_whole_run(tmp_path: Path, server: VariantServer, name: str) -> None:
    """Through the loop, with a sandbox: what the server said is what the record shows."""
    require("process")
    variant = next(one for one in VARIANTS if one.name == name)
    before = len(server.violations)
    model = {"model": "my-model", "api_base": server.url_of(variant, "run"), "api_key": "key"}
    done = run(solve("Look.", isolation="process", output_dir=tmp_path, **model))
    assert done.stop_reason == "submitted"
    call = done.steps[0].calls[0]
    assert (call.tool, call.arguments) == FIRST.calls[0]
    assert done.steps[0].thought.strip() == FIRST.text.strip()
    assert done.steps[0].reasoning.strip() == FIRST.reasoning
    assert server.violations[before:] == []


def test_a_reply_that_breaks_off_twice_is_marked_as_cut(tmp_path: Path, server: VariantServer) -> None:
    require("process")
    variant = next(one for one in VARIANTS if one.name == "no finish_reason and no [DONE]")
    model = {"model": "my-model", "api_base": server.url_of(variant, "cut"), "api_key": "key"}
    done = run(
        solve("Look.", isolation="process", output_dir=tmp_path, retries=RetryPolicy(first_wait=0.0), **model)
    )
    assert [step.finish_reason for step in done.trajectory.steps] == ["cut_off"] * len(done.trajectory.steps)
    (note,) = [event.text for event in done.trajectory.path if isinstance(event, ev.Noted)]
    assert "step 1 broke off without the server's mark of its end" in note
    how = HowToAsk(make_model("my-model", api_base=server.url_of(variant, "one"), api_key="key"))
    made = run(with_one_reply(load_task("demo"), Row("q", "?", "1"), how, tmp_path / "one"))
    assert made.run.trajectory.steps[0].finish_reason == "cut_off"
