"""Functions of the user's as tools in real runs: in the record, after a rewind, in a fork, in a cell, in a shell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import SUBMIT, bash, check_record, script, script_text, turn
from cli_process import CommandLine, open_command_line
from scripted_server import ScriptedServer
from support import MIME, PATIENCE, run
from time_travel import same_as_loaded
from warm_kernels import kernel_environment

from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.trajectory.step_line import headline
from notebooks import execute, notebook_of, outputs, printed, records

GLOSSARY = {"map": "a drawing of a place"}
LOOKUP = {"tool": "lookup", "arguments": {"word": "map"}}
TURNS = (
    turn(LOOKUP, text="I look the word up."),
    turn({"tool": "lookup", "arguments": {"word": "atlas"}}, text="And another one."),
    turn(bash("echo done > output/answer.txt")),
    SUBMIT,
)


def lookup(word: str) -> str:
    """Look up a word in the glossary."""
    return GLOSSARY[word]


async def store(name: str, text: str, sandbox: Sandbox) -> str:
    """Keep a text in the sandbox."""
    await sandbox.write_file(name, text.encode())
    return (await sandbox.run(f"wc -c < {name}")).text.strip()


def observed(result: Run) -> list[tuple[str, str]]:
    """Tools and what the model read of their calls, without the count of steps."""
    return [
        (call.tool, call.output.partition("\n\n[Steps")[0])
        for step in result.steps
        for call in step.calls
        if call.tool not in ("submit", "execute_bash")
    ]


SAID = [("lookup", "a drawing of a place"), ("lookup", "Error: KeyError: 'atlas'")]


async def looked_up(folder: Path, **options: Any) -> Run:
    options = {"tools": [lookup], "isolation": "process", "output_dir": folder / "runs"} | options
    return await solve("A task.", model=script(folder, *TURNS), **options)


@pytest.mark.alike
def test_a_function_here_and_commands_in_the_sandbox(tmp_path: Path, isolation: str) -> None:
    turns = (turn(LOOKUP), turn({"tool": "store", "arguments": {"name": "a.txt", "text": "abc"}}), SUBMIT)
    result = run(
        solve(
            "A task.",
            model=script(tmp_path, *turns),
            tools=[lookup, store],
            isolation=isolation,
            output_dir=tmp_path,
        )
    )
    check_record(result)
    assert observed(result) == [SAID[0], ("store", "3")]
    (change,) = result.steps[1].calls[0].changes
    assert (change.kind, change.path.rpartition("/")[2]) == ("added", "a.txt")
    assert result.trajectory.start is not None
    names = [tool["function"]["name"] for tool in result.trajectory.start.tools]
    assert names == ["execute_bash", "str_replace_editor", "submit", "lookup", "store"]
    assert headline(result.steps[0].calls[0], "") == "lookup word: map"


def test_a_model_server_is_sent_the_tool_and_its_results(tmp_path: Path) -> None:
    with ScriptedServer(script_text(*TURNS)) as server:
        result = run(
            solve(
                "A task.",
                model="a-model",
                api_base=server.url,
                tools=[lookup],
                isolation="process",
                output_dir=tmp_path,
            )
        )
    check_record(result)
    assert observed(result) == SAID
    sent = server.requests[0].body["tools"][-1]["function"]
    assert sent["name"] == "lookup"
    assert sent["parameters"]["properties"] == {"word": {"type": "string"}}


@pytest.mark.parametrize("waits_in", ["a coroutine", "a thread", "the sandbox"])
def test_a_stop_ends_a_tool_at_once(tmp_path: Path, waits_in: str) -> None:
    control, released, returned = RunControl(), threading.Event(), list[str]()

    async def wait(sandbox: Sandbox) -> str:
        """Wait for long."""
        control.stop()
        await (sandbox.run("sleep infinity") if waits_in == "the sandbox" else asyncio.Event().wait())
        return "never"

    def block() -> str:
        """Wait for long in a thread."""
        control.stop()
        released.wait(PATIENCE)
        returned.append("never")
        return "never"

    tool = block if waits_in == "a thread" else wait
    model = script(tmp_path, turn({"tool": tool.__name__, "arguments": {}}), SUBMIT)
    options: dict[str, Any] = {"tools": [tool], "isolation": "process", "output_dir": tmp_path / "runs"}

    async def stopped() -> Run:
        try:
            result = await solve("A task.", model=model, control=control, **options)
            assert returned == [], "the run ends before the tool does"
            return result
        finally:
            released.set()  # the loop waits for its threads

    result = run(stopped())
    assert result.stop_reason == "interrupted"
    assert result.steps[0].calls[0].result is not None
    assert result.steps[0].calls[0].result.error == "interrupted"
    check_record(result)


def test_rewind_and_fork_keep_the_tools(tmp_path: Path) -> None:
    async def play() -> tuple[Run, Run]:
        result = await looked_up(tmp_path)
        await result.rewind(2, before="call")
        other = await result.fork(1)
        await other.resume()
        await other.close()
        result.edit(word="map")
        await result.resume()
        return result, other

    result, other = run(play())
    assert observed(other) == SAID
    assert observed(result)[0] == SAID[0]
    assert observed(result)[1][1].endswith("a drawing of a place")
    assert "A person changed this call" in observed(result)[1][1]
    same_as_loaded(result)


def test_a_loaded_run_needs_the_same_tools(tmp_path: Path) -> None:
    def another(word: str) -> str:
        """Look up a word elsewhere."""
        return word

    async def play() -> Run:
        loaded = Run.load((await looked_up(tmp_path)).folder)
        await loaded.rewind(2, before="call")
        loaded.edit(word="map")
        before = loaded.journal.read_bytes()
        with pytest.raises(InputError) as caught:
            await loaded.resume()
        assert str(caught.value) == (
            "This run had the tool lookup of your own: give the same functions again, as in tools=[lookup]."
        )
        with pytest.raises(InputError, match="had no tool another"):
            await loaded.resume(tools=[lookup, another])
        assert loaded.journal.read_bytes() == before
        await loaded.resume(tools=[lookup], isolation="process")
        return loaded

    loaded = run(play())
    assert observed(loaded)[1][1].endswith("a drawing of a place")
    assert loaded.stop_reason == "submitted"


def test_a_replay_calls_the_tools_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> tuple[str, str]:
        result = await looked_up(tmp_path)
        same = await result.replay()
        assert observed(same.run) == SAID
        loaded = Run.load(result.folder)
        with pytest.raises(InputError, match=r"give the same functions again, as in tools=\[lookup\]"):
            await loaded.replay()
        monkeypatch.setitem(GLOSSARY, "map", "something else")
        other = await loaded.replay(tools=[lookup], isolation="process")
        rebuilt = await loaded.rebuild(tools=[lookup], isolation="process")
        assert observed(rebuilt)[0] == ("lookup", "something else")
        return str(same), str(other)

    same, other = run(play())
    assert same == "Replayed 4 steps: nothing differs."
    assert "1 differ, the first is step 1" in other
    assert "something else" in other


CELLS = '''\
GLOSSARY = {"map": "a drawing of a place"}

def lookup(word: str) -> str:
    """Look up a word in the glossary."""
    return GLOSSARY[word]
'''


def test_a_cell_names_the_function(tmp_path: Path) -> None:
    model = script(tmp_path, *TURNS)
    cell = f"%%sandbox -m {model} --isolation process -o result --tool lookup\nA task."
    later = "result.rewind(1)\nresult.resume()\nprint(result.stop_reason, result.steps[1].calls[0].output)"
    notebook = execute(notebook_of(CELLS, cell, later), tmp_path, kernel_environment(tmp_path))
    (record, *_) = records(notebook)
    proposed = [event["tool"] for event in record["events"] if event["kind"] == "call.proposed"]
    assert proposed == ["lookup", "lookup", "execute_bash", "submit"]
    html = "".join(output.data["text/html"] for cell in notebook.cells for output in outputs(cell)
                   if MIME in output.get("data", {}))  # fmt: skip
    assert "lookup word: map" in html
    assert "submitted Error: KeyError: 'atlas'" in printed(notebook.cells[-1])


@pytest.mark.parametrize(
    ("name", "said"),
    [("nobody", "--tool needs the name of your function, and 'nobody' is not defined."),
     ("GLOSSARY", "'GLOSSARY' is not a function."),
     ("print", "is not defined"), ("untold", "untold has no docstring")],
)  # fmt: skip
def test_a_cell_that_names_no_tool_starts_nothing(tmp_path: Path, name: str, said: str) -> None:
    cell = f"%%sandbox -m scripted/strawberry --isolation process --tool {name}\nA task."
    cells = notebook_of(CELLS + "\ndef untold(word: str): return word\n", cell)
    notebook = execute(cells, tmp_path, kernel_environment(tmp_path), allow_errors=True)
    (output,) = [one for one in notebook.cells[-1].outputs if one.output_type == "error"]
    assert said in output.evalue
    assert not (tmp_path / "sandbox-runs").exists()


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    (tmp_path / "script.yaml").write_text(script_text(*TURNS))
    (tmp_path / "tools.py").write_text(CELLS)
    yield from open_command_line(tmp_path)


RUN = ("run", "--query", "Work.", "--llm_name", "scripted/script.yaml", "--isolation", "process")


def test_the_command_line_takes_the_function_of_a_file(command_line: CommandLine) -> None:
    done = command_line(*RUN, "--tool", "tools.py:lookup")
    assert (done.code, done.err) == (0, "")
    assert "lookup" in done.out
    assert observed(Run.load(command_line.folder / done.folder)) == SAID


@pytest.mark.parametrize(
    ("name", "said"),
    [("lookup", "--tool must be FILE.py:NAME"), ("tools.py:missing", "has no function missing"),
     ("tools.py:GLOSSARY", "has no function GLOSSARY")],
)  # fmt: skip
def test_the_command_line_says_what_is_wrong(command_line: CommandLine, name: str, said: str) -> None:
    command_line(*RUN, "--tool", name).is_one_sentence(2, said)
    assert not (command_line.folder / "sandbox-runs").exists()
