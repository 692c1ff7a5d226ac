"""A real server of a small real model: what it answers, who may ask it, and what is said when it cannot serve."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import support
from gguf_files import VALUES, gguf_bytes
from local_engines import engines_of
from support import until

from llm_sandbox_nb.model.contract import ModelError, ModelSettings
from llm_sandbox_nb.model.local import machine
from llm_sandbox_nb.model.local import server as local_server
from llm_sandbox_nb.model.local.gguf import read_header
from llm_sandbox_nb.model.local.local_model import SERVER_LOG, LocalModel
from llm_sandbox_nb.model.local.store import FetchStoppedError, Stop
from llm_sandbox_nb.model.local.table import MODELS
from llm_sandbox_nb.model.retries import RetryPolicy, reply_with_retries

NAME = "local/smollm2-135m"
SHORT = ModelSettings(max_tokens=4, temperature=0)
USER = [{"role": "user", "content": "Say hello."}]
TOOL = {
    "type": "function",
    "function": {"name": "submit", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """One model of this process; its server ends with the module."""
    made = LocalModel(NAME)
    asyncio.run(made.check())
    support.KEPT_PIDS.add(pid_of(made))
    yield made
    server_of(made).close()


def server_of(model: LocalModel) -> local_server.ModelServer:
    assert model._served is not None
    return model._served.server


def pid_of(model: LocalModel) -> int:
    pid = server_of(model).process_id
    assert pid is not None
    return pid


def engines() -> list[psutil.Process]:
    return engines_of(os.getpid())


def test_it_answers_for_nothing_and_says_which_file_and_engine(model: LocalModel, tmp_path: Path) -> None:
    model.log_to(tmp_path)
    reply = asyncio.run(model.reply(USER, [], SHORT))
    model.end_log(tmp_path)
    assert reply.usage is not None
    assert (reply.usage.cost, reply.usage.completion_tokens) == (0.0, 4)
    assert reply.finish_reason == "length"
    facts = model.served_by()
    assert facts["sha256"] == MODELS["smollm2-135m"].sha256
    assert facts["sha256"][:16] in model.introduction()
    assert facts["engine"] in model.introduction()
    log = (tmp_path / SERVER_LOG).read_text()
    assert "listening on http://127.0.0.1:" in log
    assert server_of(model).key not in log


def test_a_template_without_tools_refuses_them_as_a_server_does(model: LocalModel) -> None:
    with pytest.raises(ModelError, match="does not accept tools") as refused:
        asyncio.run(model.reply(USER, [TOOL], SHORT))
    assert refused.value.kind == "tools"


def test_a_second_model_of_the_process_has_the_same_server(model: LocalModel) -> None:
    second = LocalModel(NAME)
    asyncio.run(second.check())
    assert server_of(second) is server_of(model)
    assert len(engines()) == 1


def test_only_who_knows_the_key_can_ask_and_no_process_list_has_it(model: LocalModel) -> None:
    server = server_of(model)
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
        for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/chat/completions", "/completion"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert client.get(path, headers=headers).status_code in (401, 404, 405), path
                assert client.post(path, headers=headers, json={"messages": USER}).status_code in (
                    401,
                    404,
                ), path
    engine = psutil.Process(pid_of(model))
    assert {one.laddr.ip for one in engine.net_connections() if one.status == psutil.CONN_LISTEN} == {
        "127.0.0.1"
    }
    assert server.key not in " ".join(engine.cmdline()) + str(engine.environ())


def test_two_requests_are_answered_at_the_same_time(model: LocalModel) -> None:
    """Each reply begins before the other one has ended."""
    order: list[str] = []

    async def ask(name: str) -> None:
        settings = ModelSettings(max_tokens=60, temperature=0)
        text = [{"role": "user", "content": f"Tell a long story about {name}."}]
        await model.reply(text, [], settings, lambda *_: order.append(name))
        order.append(f"end of {name}")

    async def ask_both() -> None:
        await asyncio.gather(ask("a dog"), ask("a cat"))

    asyncio.run(ask_both())
    first_end = min(order.index("end of a dog"), order.index("end of a cat"))
    assert {"a dog", "a cat"} <= set(order[:first_end])


def test_a_server_that_was_killed_is_started_again(model: LocalModel) -> None:
    before = pid_of(model)
    os.kill(before, signal.SIGKILL)
    reply = asyncio.run(reply_with_retries(model, USER, [], SHORT, policy=RetryPolicy(first_wait=0.1)))
    support.KEPT_PIDS.add(pid_of(model))
    assert reply.usage is not None
    assert pid_of(model) != before
    assert len(engines()) == 1


def test_a_file_without_weights_is_refused_in_one_sentence_and_leaves_no_process(
    model: LocalModel, tmp_path: Path
) -> None:
    path = tmp_path / "zeros.gguf"
    path.write_bytes(gguf_bytes())
    with pytest.raises(ModelError) as refused:
        asyncio.run(LocalModel(f"local/{path}").check())
    said = str(refused.value)
    assert said.startswith(f"local/{path} could not be loaded: ")
    assert said.endswith(".")
    assert "\n" not in said
    assert server_of(model).alive == bool(engines())


def test_too_little_memory_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf_bytes({**VALUES, "llama.block_count": 80, "llama.embedding_length": 8192}))
    monkeypatch.setattr(machine, "free_memory", lambda: 2 * 10**9)
    with pytest.raises(
        ModelError, match=r"needs about .* of memory, but only .* are free here: end other programs"
    ):
        local_server.plan_server(path, "local/large", read_header(path))
    monkeypatch.setattr(machine, "free_memory", lambda: 10**12)
    plan = local_server.plan_server(path, "local/large", read_header(path))
    assert (plan.context, plan.slots) == (2048, 4)
    only_one = local_server._ENGINE_BYTES + 1.5 * 2048 * read_header(path).cache_bytes_per_token
    monkeypatch.setattr(machine, "free_memory", lambda: int(only_one / local_server._MEMORY_SHARE))
    plan = local_server.plan_server(path, "local/large", read_header(path))
    assert (plan.context, plan.slots) == (2048, 1)


def test_the_memory_of_a_model_in_several_files_counts_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "big[1]-00001-of-00003.gguf"
    first.write_bytes(gguf_bytes({**VALUES, "split.count": 3}))
    for number in (2, 3):
        with (tmp_path / f"big[1]-0000{number}-of-00003.gguf").open("wb") as file:
            file.truncate(10**9)
    (tmp_path / "big[1]-00001-of-00002.gguf").write_bytes(b"")
    monkeypatch.setattr(machine, "free_memory", lambda: 3 * 10**9)
    with pytest.raises(ModelError, match=r"needs about 2.9 GB of memory"):
        local_server.plan_server(first, "local/big", read_header(first))
    (tmp_path / "big[1]-00002-of-00003.gguf").unlink()
    with pytest.raises(
        ModelError, match=r"first of 3 files of a model, and big\[1\]-00002-of-00003.gguf is missing"
    ):
        local_server.plan_server(first, "local/big", read_header(first))
    with pytest.raises(ModelError, match=r"give it its original name again, NAME-00001-of-00003.gguf"):
        local_server.plan_server(
            first.rename(tmp_path / "big.gguf"), "local/big", read_header(tmp_path / "big.gguf")
        )


def test_a_model_with_a_very_short_context_gets_the_shortest_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(gguf_bytes({**VALUES, "llama.context_length": 100}))
    monkeypatch.setattr(machine, "free_memory", lambda: 10**12)
    assert local_server.plan_server(path, "local/short", read_header(path)).context == 256


def test_only_where_memory_is_short_a_server_that_nobody_uses_makes_room(
    model: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zeros.gguf"
    path.write_bytes(gguf_bytes())
    before = pid_of(model)
    monkeypatch.setattr(machine, "free_memory", lambda: 10**12)
    with pytest.raises(ModelError, match="could not be loaded"):
        asyncio.run(LocalModel(f"local/{path}").check())
    assert pid_of(model) == before
    assert server_of(model).alive
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    model.log_to(tmp_path)
    with pytest.raises(ModelError, match="of memory"):
        asyncio.run(LocalModel(f"local/{path}").check())
    assert server_of(model).alive, "a run uses it"
    model.end_log(tmp_path)
    with pytest.raises(ModelError, match="of memory"):
        asyncio.run(LocalModel(f"local/{path}").check())
    assert not server_of(model).alive
    monkeypatch.undo()
    asyncio.run(model.check())
    support.KEPT_PIDS.add(pid_of(model))


def test_whoever_waits_no_more_ends_the_loading(model: LocalModel) -> None:
    file = server_of(model).plan.file
    server = local_server.ModelServer(server_of(model).plan)
    before, stop = engines(), Stop()
    stop.set()
    with pytest.raises(FetchStoppedError):
        server.start(stop)
    until(lambda: len(engines()) <= len(before))
    assert local_server.running_server(file) is not server
