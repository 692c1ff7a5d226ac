"""A model talks to its server and nobody else: watched from inside, with canaries that fire."""

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
from llm_sandbox_nb.agent.model import ModelSettings
from llm_sandbox_nb.agent.model_litellm import make_model
name, base, key = sys.argv[1], sys.argv[2] or None, sys.argv[3] or None
tools = [{"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}]
model = make_model(name, api_base=base, api_key=key)
reply = asyncio.run(model.reply([{"role": "user", "content": "hi"}], tools, ModelSettings(temperature=0.5)))
assert reply.calls[0].name == "execute_bash", reply
"""
_TELL = "print(json.dumps({'seen': seen, 'canary': os.environ.get('LLM_SANDBOX_CANARY')}))"


def watched(code: str, *arguments: str, folder: Path | None = None, **environment: str) -> dict[str, object]:
    """Run code in a fresh interpreter; returns whom it tried to reach, and the canary variable."""
    root = str(Path(__file__).parents[2])
    clean = {k: v for k, v in os.environ.items() if "LITELLM" not in k and "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", f"{_WATCH}\n{code}\n{_TELL}", *arguments],
        env=clean | {"PYTHONPATH": root} | environment,
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_scripted_model_opens_no_socket() -> None:
    assert watched(_ASK, "scripted/strawberry", "", "")["seen"] == []


@pytest.mark.parametrize(
    "name",
    [
        "my-model",
        pytest.param("openai/gpt-4o", marks=pytest.mark.slow),
        "openai/llama-2-7b",  # its tokenizer would be downloaded to count tokens, when the server tells none
        pytest.param("hosted_vllm/meta-llama/Llama-2-7b", marks=pytest.mark.slow),
        pytest.param("anthropic/claude-sonnet-4-5", marks=pytest.mark.slow),
    ],
)
def test_only_the_models_server_is_reached(name: str) -> None:
    with ScriptedServer("strawberry", usage="llama" not in name.lower()) as server:
        base = server.root if name.startswith("anthropic") else server.url
        seen = watched(_ASK, name, base, "key")["seen"]
        port = server.url.split(":")[2].removesuffix("/v1")
    assert seen
    assert isinstance(seen, list)
    assert {peer for peer in seen if peer not in (f"('127.0.0.1', {port})", "lookup of 127.0.0.1")} == set()


def test_the_watch_sees_what_importing_litellm_alone_does() -> None:
    """The canary: without our settings its import goes to the network for a table of prices."""
    code = "try: import litellm\nexcept ImportError: pass"  # offline, some versions do not survive it
    seen = watched(code)["seen"]
    assert isinstance(seen, list)
    assert any("lookup of" in peer for peer in seen)


@pytest.mark.parametrize("mode", ["", "DEV"], ids=["ours", "canary"])
def test_a_dotenv_file_that_lies_about_is_not_read(tmp_path: Path, mode: str) -> None:
    """It could send a key to another address. With LITELLM_MODE=DEV, which a person may set, it is read."""
    (tmp_path / ".env").write_text("LLM_SANDBOX_CANARY=fired\n")
    code = (
        "sys.ps1 = '> '\n" + _ASK
    )  # dotenv looks in the working folder when somebody types, as in a notebook
    environment = {"LITELLM_MODE": mode} if mode else {}
    found = watched(code, "scripted/strawberry", "", "", folder=tmp_path, **environment)
    assert found["canary"] == ("fired" if mode else None)
