"""The paper's package and this one beside each other: the same command line, the same server, the same messages.

Both run as their users run them, from the shell, in Docker with our image; the server plays a script and keeps what
it was sent. The package is installed from the index into an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, script_text, turn
from scripted_server import RecordedRequest, ScriptedServer

from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("docker_engine"),
]

TASK = "How many r's are in {strawberry}? Answer in \\boxed{}."
SCRIPT = script_text(
    turn(bash("ls /testbed/*; echo 3 > /testbed/answer.txt; cat /testbed/answer.txt")), SUBMIT
)
COUNTER = re.compile(r"\s*\[?Steps [Rr]emaining: \d+\]?.*\Z", re.DOTALL)
"""The package ends each message with a line `Steps Remaining: N`, ours with `[Steps remaining: N]`."""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def papers_folder(python: Path) -> Path:
    (folder,) = python.parents[1].glob("lib/python3.*/site-packages/llm_in_sandbox")
    return folder


def requests_of(words: list[str], cwd: Path, **more: str) -> list[RecordedRequest]:
    """What the server got from a command line; `URL` in it is the server's address."""
    with ScriptedServer(SCRIPT, strict=False) as server:
        command = [server.url if word == "URL" else word for word in words]
        environment = {**os.environ, **OFFLINE, **more}
        for name in ("LLM_BASE_URL", "LLM_NAME"):
            environment.pop(name, None)
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, env=environment)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return list(server.requests)


def told(requests: list[RecordedRequest]) -> list[tuple[Any, ...]]:
    """The messages of the last request that both packages must agree about.

    Documented differences: the counter's brackets, the form of a tool's result, ids of calls, and fields of a reply
    that mean nothing (`function_call: null`).
    """
    found: list[tuple[Any, ...]] = []
    ids: dict[str, int] = {}
    for message in requests[-1].messages:
        calls = [
            (
                ids.setdefault(call["id"], len(ids)),
                call["function"]["name"],
                json.loads(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls") or ()
        ]
        if message["role"] == "tool":
            found.append(("tool", ids[message["tool_call_id"]]))
        elif message["role"] == "assistant":
            found.append(("assistant", calls))
        else:
            found.append((message["role"], COUNTER.sub("", message["content"])))
    return found


def words(program: list[str], *more: str) -> list[str]:
    return [*program, *more, "--llm_name", "scripted", "--llm_base_url", "URL", "--api_key", "key"]


CONFIGS = (
    "general",
    "math",
    "physics",
    "chem",
    "biomed",
    "long_context",
    "instruct_follow",
    "instruct_pretrain",
)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_prompt_file_of_the_package_says_the_same(config: str, seed_python: Path, tmp_path: Path) -> None:
    package = papers_folder(seed_python)
    file = package / ("config/general.yaml" if config == "general" else f"benchmark/{config}/config.yaml")
    run = ["run", "-q", TASK, "-p", str(file), "-d", DEFAULT_IMAGE, "-o", "out", "-t", "0.7"]
    theirs = requests_of(words([str(seed_python.parent / "llm-in-sandbox")], *run), tmp_path)
    ours = requests_of(
        words([sys.executable, "-m", "llm_sandbox_nb"], *run), tmp_path, LLM_SANDBOX_ISOLATION="docker"
    )
    assert told(ours) == told(theirs)
    assert [message["role"] for message in ours[-1].messages] == ["system", "user", "assistant", "tool"]
    for name in ("temperature", "model"):
        assert ours[0].body[name] == theirs[0].body[name]
    tools = [sorted(tool["function"]["name"] for tool in one[0].body["tools"]) for one in (ours, theirs)]
    assert tools[0] == tools[1]


def test_its_demo_benchmark_runs_unchanged(seed_python: Path, tmp_path: Path) -> None:
    """It ignores the folders that its task names and has these instead, so that the row's file is not where it says."""
    demo = papers_folder(seed_python) / "benchmark" / "demo"
    one = ["--start_id", "3", "--end_id", "4", "--num_workers", "1", "--docker_image", DEFAULT_IMAGE]

    def ours(folder: Path, out: str) -> list[RecordedRequest]:
        program = [sys.executable, "-m", "llm_sandbox_nb"]
        command = words(program, "benchmark", "--task", str(folder), "--output_dir", out, *one)
        return requests_of(command, tmp_path, LLM_SANDBOX_ISOLATION="docker")

    program = [str(seed_python.parent / "llm-in-sandbox")]
    theirs = requests_of(
        words(program, "benchmark", "--task", "demo", "--output_dir", "theirs", *one), tmp_path
    )
    copy = tmp_path / "copies" / "demo"
    shutil.copytree(demo, copy)
    config = (copy / "config.yaml").read_text()
    for name, folder in (("input_dir", "/testbed/documents"), ("output_dir", "/testbed")):
        config = re.sub(rf"(?m)^{name}: .*$", f"{name}: {folder}", config)
    (copy / "config.yaml").write_text(config)
    assert told(ours(copy, "like-theirs")) == told(theirs)
    observation = ours(demo, "unchanged")[-1].messages[-1]["content"]
    assert re.search(r"/testbed/input:\s+numbers.txt", observation), "the file is where the task says it is"


@pytest.mark.parametrize("task", ["demo", "long_context", "math"])
def test_its_prompts_without_a_sandbox_are_the_same(task: str, seed_python: Path, tmp_path: Path) -> None:
    """With rows of our own in place of its data sets, which are on the network."""
    folder = tmp_path / task
    source = papers_folder(seed_python) / "benchmark" / task
    rows = [{"id": "a", "domain": task, "problem_statement": TASK, "ground_truth": "3",
             "input_files": {"one.txt": "1", "two.txt": "2"}}]  # fmt: skip
    code = f"""
import json, sys
from llm_in_sandbox.benchmark.runner import load_prompt_function
print(json.dumps(load_prompt_function({task!r})(json.loads(sys.argv[1]))))
"""
    made = subprocess.run(
        [str(seed_python), "-c", code, json.dumps(rows[0])], capture_output=True, text=True, check=True
    )
    folder.mkdir()
    for name in ("vanilla_llm_prompt.py", "reward.py"):
        (folder / name).write_text((source / name).read_text())
    config = (source / "config.yaml").read_text().replace('data_files: "demo/data.json"', "")
    (folder / "config.yaml").write_text(
        re.sub(r"(?m)^dataset:.*$", "dataset: json\ndata_files: rows.json", config, count=1)
    )
    (folder / "rows.json").write_text(json.dumps(rows))
    ours = requests_of(
        words([sys.executable, "-m", "llm_sandbox_nb"], "benchmark", str(folder), "--mode", "llm",
              "--max_response_len", "77", "--output_dir", "out", "--save_litellm_response"),
        tmp_path,
    )  # fmt: skip
    assert [message["content"] for message in ours[0].messages] == [json.loads(made.stdout)]
    assert ours[0].body["max_tokens"] == 77
    assert len(list(tmp_path.glob("out/**/litellm/request_001.json"))) == 1


def test_what_its_benchmark_writes_is_analyzed(seed_python: Path, tmp_path: Path) -> None:
    one = ["--start_id", "0", "--end_id", "2", "--num_workers", "1"]
    benchmark = [
        "benchmark",
        "--task",
        "demo",
        "--docker_image",
        DEFAULT_IMAGE,
        "--output_dir",
        "theirs",
        *one,
    ]
    requests_of(words([str(seed_python.parent / "llm-in-sandbox")], *benchmark), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "llm_sandbox_nb", "analyze", "theirs"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "left out" not in done.stdout + done.stderr
    assert re.search(r"runs\s+2\b", done.stdout), done.stdout
