"""Replies from a vLLM server, played by a stand-in that speaks its protocol: ids in, ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from loopback_http import LoopbackHandler, LoopbackServer

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.training import vllm_server
from llm_sandbox_nb.training.generation import Generated
from llm_sandbox_nb.training.policy import Sampling
from llm_sandbox_nb.training.vllm_server import ServerGenerator

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]
"""Takes a request and its number; gives a status and what is answered as JSON."""


class StandIn(LoopbackServer):
    """A vLLM server by a script. `requests` are those for completions; `most` is how many ran at once."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(_Handler)
        self.answer, self.requests = answer, list[dict[str, Any]]()
        self.running = self.most = 0
        self.lock = threading.Lock()


class _Handler(LoopbackHandler):
    server: StandIn

    def do_GET(self) -> None:
        self.send(200, {"data": [{"id": "policy"}]})

    def do_POST(self) -> None:
        request = self.body()
        with self.server.lock:
            self.server.requests.append(request)
            number = len(self.server.requests)
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        try:
            self.send(*self.server.answer(request, number))
        finally:
            with self.server.lock:
                self.server.running -= 1


@pytest.fixture
def server() -> Iterator[Callable[[Answer], StandIn]]:
    with ExitStack() as made:
        yield lambda answer: made.enter_context(StandIn(answer))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_PAUSE_SECONDS", 0.01)


def told(ids: list[int]) -> dict[str, Any]:
    return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.5 for _ in ids]}}]}


def generate(
    address: str, *prompts: list[int], limit: int = 20, sampling: Sampling = Sampling(0.7, 0.9, 20)
) -> list[Generated]:
    async def ask() -> list[Generated]:
        async with ServerGenerator(address, sampling, 60.0) as generator:
            return list(await asyncio.gather(*(generator.generate(prompt, limit) for prompt in prompts)))

    return asyncio.run(ask())


def test_ids_go_in_and_come_out_as_they_are(server: Callable[[Answer], StandIn]) -> None:
    stand_in = server(lambda request, _: (200, told([*request["prompt"][::-1], 2])))
    (made,) = generate(f"{stand_in.root}/v1/", [5, 6, 7])
    assert made == Generated((7, 6, 5, 2), (-0.5, -0.5, -0.5, -0.5))
    (request,) = stand_in.requests
    assert request["model"] == "policy"
    assert (request["prompt"], request["max_tokens"]) == ([5, 6, 7], 20)
    assert (request["temperature"], request["top_p"], request["top_k"]) == (0.7, 0.9, 20)
    assert request["return_token_ids"] is True


def test_the_defaults_of_the_served_model_change_no_sampling(server: Callable[[Answer], StandIn]) -> None:
    """vLLM takes a setting that a request lacks from the model's generation_config.json."""
    stand_in = server(lambda *_: (200, told([4])))
    generate(stand_in.root, [1], sampling=Sampling())
    (request,) = stand_in.requests
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {name: request.get(name) for name in wanted} == wanted


def test_more_than_the_limit_is_never_taken(server: Callable[[Answer], StandIn]) -> None:
    stand_in = server(lambda *_: (200, told(list(range(9)))))
    (made,) = generate(stand_in.root, [1], limit=4)
    assert made.ids == (0, 1, 2, 3)
    assert made.logprobs is not None
    assert len(made.logprobs) == 4


def test_rollouts_ask_at_once(server: Callable[[Answer], StandIn]) -> None:
    gate = threading.Barrier(8)

    def wait(request: dict[str, Any], number: int) -> tuple[int, Any]:
        gate.wait(60)
        return 200, told([request["prompt"][0], 2])

    stand_in = server(wait)
    made = generate(stand_in.root, *([number] for number in range(8)))
    assert [one.ids for one in made] == [(number, 2) for number in range(8)]
    assert stand_in.most == 8


def test_a_server_that_is_busy_is_asked_again(server: Callable[[Answer], StandIn]) -> None:
    stand_in = server(lambda _, number: (503, {}) if number < 3 else (200, told([4])))
    (made,) = generate(stand_in.root, [1])
    assert made.ids == (4,)
    assert len(stand_in.requests) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, {}), "answered 500: start it, or correct generation.server"),
        ((400, {"message": "too long"}), r"refused a request .*too long"),
        (
            (200, {"choices": [{"text": "hello"}]}),
            "returns no token ids: use a vLLM that knows `return_token_ids`",
        ),
        ((200, {"choices": [{"token_ids": [1, 2]}]}), "does not return a log-probability for each token"),
        ((200, {"choices": []}), "did not answer as vLLM does: check generation.server"),
        ((200, ["x"]), "did not answer as vLLM does"),
    ],
)
def test_unusable_answers_are_reported_in_one_sentence(
    server: Callable[[Answer], StandIn], answer: tuple[int, Any], said: str
) -> None:
    stand_in = server(lambda *_: answer)
    with pytest.raises(ModelError, match=said) as error:
        generate(stand_in.root, [1])
    assert stand_in.root in str(error.value)
    assert str(error.value).count(". ") == 0


def test_missing_server_is_reported_in_one_sentence() -> None:
    with pytest.raises(
        ModelError, match=r"127\.0\.0\.1:9 cannot be reached .*: start it, or correct generation"
    ):
        generate("http://127.0.0.1:9", [1])
