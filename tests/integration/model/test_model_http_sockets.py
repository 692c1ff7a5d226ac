"""A model talks to its server and nobody else: watched from inside, with canaries that fire."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_server import ScriptedServer

_WATCH = """
import json, os, sys
seen = []
def hook(event, args):
    if event == "socket.connect":
        seen.append(str(args[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        seen.append("lookup of " + str(args[0]))
sys.addaudithook(hook)
"""
_ASK = """
import asyncio
from llm_sandbox_nb.model.contract import ModelSettings
from llm_sandbox_nb.model.model_names import make_model
tools = [{"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}]
for name, base, key in json.loads(sys.argv[1]):
    model = make_model(name, api_base=base, api_key=key)
    messages = [{"role": "user", "content": "hi"}]
    reply = asyncio.run(model.reply(messages, tools, ModelSettings(temperature=0.5)))
    assert reply.calls[0].name == "execute_bash", reply
"""
_TELL = "print(json.dumps({'seen': seen, 'canary': os.environ.get('LLM_SANDBOX_CANARY')}))"


def watched(code: str, *arguments: str, folder: Path | None = None, **environment: str) -> dict[str, object]:
    """Run code in a fresh interpreter; returns whom it tried to reach, and the canary variable."""
    root = str(Path(__file__).parents[3])
    clean = {k: v for k, v in os.environ.items() if "LITELLM" not in k and "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", f"{_WATCH}\n{code}\n{_TELL}", *arguments],
        env=clean | {"PYTHONPATH": root} | environment,
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


SCRIPTED = json.dumps([("scripted/strawberry", None, None)])
NAMES = [
    "my-model",
    "openai/gpt-4o",
    "openai/llama-2-7b",  # its tokenizer would be downloaded to count tokens, when the server tells none
    "hosted_vllm/meta-llama/Llama-2-7b",
    "anthropic/claude-sonnet-4-5",
]


def test_a_server_with_openais_protocol_is_asked_without_litellm() -> None:
    """Neither LiteLLM nor OpenAI's client is imported, also for the context limit and the price."""
    with contextlib.ExitStack() as servers:
        asked = [
            (name, servers.enter_context(ScriptedServer("strawberry")).url, "key")
            for name in [*NAMES[:-1], "gpt-4o", "together_ai/meta/llama", "deepseek/deepseek-chat"]
        ]
        limit = "    assert asyncio.run(model.context_limit()) is not False\n"
        count = "seen = [name for name in ('litellm', 'openai') if name in sys.modules]\n"
        assert watched(_ASK + limit + count, json.dumps(asked))["seen"] == []


IN_A_NOTEBOOK = "sys.ps1 = '> '\n"
"""Where somebody types, dotenv looks for its file in the working folder."""


def with_dotenv_file(folder: Path) -> Path:
    (folder / ".env").write_text("LLM_SANDBOX_CANARY=fired\n")
    return folder


def test_a_scripted_model_opens_no_socket() -> None:
    assert watched(_ASK, SCRIPTED)["seen"] == []


@pytest.mark.campaign
def test_the_watch_sees_what_importing_litellm_alone_does() -> None:
    """The canary: without our settings its import goes to the network for a table of prices."""
    code = "try: import litellm\nexcept ImportError: pass"  # offline, some versions do not survive it
    seen = watched(code)["seen"]
    assert isinstance(seen, list)
    assert any("lookup of" in peer for peer in seen)


_SOLVE = """
import asyncio, time
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox
async def after_litellm():
    start = time.monotonic()
    while "litellm" not in sys.modules:
        assert time.monotonic() < start + 90, "LiteLLM waits for the sandbox"
        await asyncio.sleep(0.01)
    return await open_sandbox("process")
async def main():
    first = "litellm" in sys.modules
    made = await solve("Go.", model="anthropic/claude-sonnet-4-5", api_base=sys.argv[2], api_key="key",
                       sandbox=after_litellm(), isolation="process", limits={"steps": 1})
    await made.context.box.close()
    assert (first, made.stop_reason) == (False, "steps"), (first, made.stop_reason, made.error)
asyncio.run(main())
"""


def test_only_the_models_server_is_reached_and_no_dotenv_file_is_read(tmp_path: Path) -> None:
    """Such a file could send a key to another address. LiteLLM is imported while the sandbox of a first run starts."""
    with contextlib.ExitStack() as servers:
        asked = []
        for name in NAMES:
            server = servers.enter_context(ScriptedServer("strawberry", usage="llama" not in name.lower()))
            asked.append((name, server.root if name.startswith("anthropic") else server.url, "key"))
        first = servers.enter_context(ScriptedServer("strawberry"))
        folder = with_dotenv_file(tmp_path)
        found = watched(IN_A_NOTEBOOK + _SOLVE + _ASK, json.dumps(asked), first.root, folder=folder)
    assert found["canary"] is None
    seen = found["seen"]
    ports = [base.split(":")[2].removesuffix("/v1") for _, base, _ in [*asked, ("", first.root, "")]]
    expected = {f"('127.0.0.1', {port})" for port in ports}
    assert isinstance(seen, list)
    assert expected <= set(seen) <= expected | {"lookup of 127.0.0.1"}


@pytest.mark.campaign
def test_the_canary_sees_a_dotenv_file_that_is_read(tmp_path: Path) -> None:
    """With LITELLM_MODE=DEV, which a person may set, it is read."""
    with ScriptedServer("strawberry") as server:
        asked = json.dumps([("anthropic/claude-sonnet-4-5", server.root, "key")])
        folder = with_dotenv_file(tmp_path)
        found = watched(IN_A_NOTEBOOK + _ASK, asked, folder=folder, LITELLM_MODE="DEV")
    assert found["canary"] == "fired"
