"""`%sandbox benchmark` in real kernels: the table while it goes on, an interrupt, going on, hostile names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import bash, script_text, turn
from live_kernel import LiveKernel, Message, cards_of, live_kernel
from nbconvert import HTMLExporter
from scripted_server import ScriptedServer
from support import PATIENCE, own_mark, processes_with, until
from warm_kernels import kernel_environment

from llm_sandbox_nb.benchmark.results import FILE, read_results
from notebooks import errors, execute, notebook_of, outputs, printed, ran

pytestmark = pytest.mark.timeout(900)
ROWS = 6
QUICK = script_text(turn(bash("echo three > answer.txt")), turn({"tool": "submit"}))
SLOW = script_text(turn(bash("WAIT; echo three > answer.txt")), turn({"tool": "submit"}))
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e</table><script>alert(2)</script>"


def counted(folder: Path, script: str, prefix: str = "r") -> str:
    """A task of six problems, half of which the script solves, and the line that runs it."""
    task = folder / "counted"
    task.mkdir()
    (task / "task.yaml").write_text("scorer: exact\n")
    rows = [
        {"id": f"{prefix}{n}", "problem_statement": f"p{n}", "ground_truth": "three" if n % 2 else "four"}
        for n in range(ROWS)
    ]
    (task / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "script.yaml").write_text(script)
    return (
        "%sandbox benchmark run ./counted --model scripted/./script.yaml --isolation process "
        "--workers 2 --attempts 1 --out out"
    )


def data_of(message: Message) -> dict[str, Any]:
    bundle: dict[str, Any] = message["content"]["data"]
    return bundle


def running(message: Message) -> bool:
    text = message["content"].get("data", {}).get("text/plain", "")
    return any(f"{n}/{ROWS}" in text for n in range(1, ROWS)) and "running" in text.splitlines()[0]


def test_it_runs_headless_and_is_readable_afterwards(tmp_path: Path) -> None:
    line = counted(tmp_path, QUICK)
    notebook = notebook_of(
        "%sandbox benchmark list",
        line + " --mode sandbox,llm",
        "%sandbox benchmark report out --html r.html",
        line,
    )
    execute(notebook, tmp_path, kernel_environment(tmp_path))
    _, listed, ran, reported, again = notebook.cells
    assert "long_context" in printed(listed)
    (shown,) = outputs(ran)
    text, page = shown.data["text/plain"], shown.data["text/html"]
    assert text.startswith(
        "Benchmark: done, scripted/./script.yaml (scripted: The replies are read from a file"
    )
    done = read_results(tmp_path / "out")
    tokens = sum(one.prompt_tokens + one.model_tokens + one.environment_tokens for one in done)
    assert [line.split()[:3] for line in text.splitlines()[2:5]] == [
        ["counted", "sandbox", "6/6"],
        ["counted", "llm", "6/6"],
        ["all", "12/12", f"{tokens:,}"],
    ]
    assert "counted  sandbox - llm" in text
    assert ">scripted</span>" in page
    assert "<h2>Side by side</h2>" in page
    assert "50.0" in next(outputs(reported)).data["text/plain"]
    assert (tmp_path / "r.html").stat().st_size > 1_000
    assert "6/6" in next(outputs(again)).data["text/plain"]
    assert len(done) == 2 * ROWS
    converted, _ = HTMLExporter().from_notebook_node(notebook)
    assert "<h2>Side by side</h2>" in converted


def test_an_interrupt_ends_it_in_good_order_and_the_cell_goes_on(tmp_path: Path) -> None:
    mark = own_mark()
    wait = f"test $(ls {tmp_path}/out/counted/sandbox/runs | wc -l) -lt 4 || test -e {tmp_path}/go-on || sleep {mark}"
    line = counted(tmp_path, SLOW.replace("WAIT", wait))
    with live_kernel(tmp_path) as kernel:
        cell = kernel.start(line)
        seen = kernel.messages(cell, until=running, timeout=2 * PATIENCE)
        until(lambda: processes_with(mark), "the canary: without the interrupt these would stay")
        kernel.manager.interrupt_kernel()
        seen += kernel.messages(cell, timeout=2 * PATIENCE)
        until(lambda: not processes_with(mark))
        (error,) = [message["content"] for message in seen if message["msg_type"] == "error"]
        assert error["ename"] == "KeyboardInterrupt"
        assert error["traceback"] == [
            "KeyboardInterrupt: The benchmark was interrupted. Results so far are in out: "
            "run the cell again to resume."
        ]
        cards = cards_of(seen)
        assert len({card["content"]["transient"]["display_id"] for card in cards}) == 1
        assert data_of(cards[-1])["text/plain"].startswith("Benchmark: interrupted")
        done = len(read_results(tmp_path / "out"))
        assert 0 < done < ROWS
        (tmp_path / "go-on").touch()
        last = data_of(cards_of(kernel.run(line, timeout=3 * PATIENCE))[-1])
        assert f"{ROWS}/{ROWS}" in last["text/plain"]
        goes_on(kernel)
    lines = (tmp_path / "out" / "counted" / "sandbox" / FILE).read_text("utf-8").splitlines()
    assert Counter(json.loads(line)["item"] for line in lines) == {f"r{n}": 1 for n in range(ROWS)}


def goes_on(kernel: LiveKernel) -> None:
    assert kernel.printed("print('alive')") == "alive\n"


def test_hostile_names_and_errors_are_text(tmp_path: Path) -> None:
    line = counted(tmp_path, QUICK, prefix=f"{HOSTILE}/../")
    script = script_text({"error": {"kind": "bad_request", "message": HOSTILE}})
    with ScriptedServer(script) as model:
        line = line.replace("scripted/./script.yaml", f"'<b>model' --llm_base_url {model.url} --api_key none")
        cell = ran(tmp_path, line)[-1]
    shown = next(outputs(cell))
    page, text = shown.data["text/html"], shown.data["text/plain"]
    for live in ("<script", "<img", "<b>model", "\x1b", "\u202e"):
        assert live not in page
    assert "&lt;script&gt;" in page, "the canary: it is there, as text"
    assert not {"\x1b", "\u202e"} & set(text)
    assert "6 bad_request" in text
    assert "scripted" not in page
    (error,) = errors(cell)
    assert error.ename == "SandboxBenchmarkError"
    assert len(error.traceback) == 1
    assert not {"\x1b", "\u202e"} & set(error.traceback[0])


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    lines = {
        "%sandbox benchmark run demo": "There is no model",
        "%sandbox benchmark run phisics --model x": "did you mean",
        "%sandbox benchmark run demo --model x --worker 3": "did you mean --workers?",
        "%sandbox benchmark": "the following arguments are required: ACTION",
        "%sandbox benchmark report nowhere": "There are no results in nowhere",
        "%sandbox benchmark run 'demo": "check its quotes",
    }
    cells = ran(tmp_path, *lines, LLM_NAME="")
    for cell, said in zip(cells[1:], lines.values(), strict=True):
        (error,) = errors(cell)
        assert error.ename == "SandboxUsageError", error
        assert len(error.traceback) == 1
        assert said.lower() in error.evalue.lower()
    assert not (tmp_path / "results").exists()


def test_what_the_notebook_is_set_to_holds_here_too(tmp_path: Path) -> None:
    line = counted(tmp_path, QUICK).replace("--model scripted/./script.yaml --isolation process", "")
    settings = ("model = 'scripted/./script.yaml'", "isolation = 'process'")
    config = "\n".join(f"%config SandboxMagics.{setting}" for setting in settings)
    cells = ran(
        tmp_path, config, line, LLM_NAME="", LLM_SANDBOX_ISOLATION="docker", DOCKER_HOST="unix:///nowhere"
    )
    assert not any(errors(cell) for cell in cells)
    assert {result.score for result in read_results(tmp_path / "out")} == {0.0, 1.0}
