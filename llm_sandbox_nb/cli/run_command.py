"""`llm-sandbox-nb run` and `examples`: run one task in a new sandbox, and record the run in one folder.

At a pause a person at the terminal decides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import runpy
import select
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from llm_sandbox_nb.cli import (
    ENDED_WELL,
    FAILED,
    INTERRUPTED,
    MODEL_ERROR,
    SANDBOX_ERROR,
    exit_code,
    on_signals,
)
from llm_sandbox_nb.cli.printer import Printer, doubts_text, harmless
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.formats.llm_in_sandbox import RESPONSES, save_responses
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.options.parser import did_you_mean
from llm_sandbox_nb.options.table import QUERY, RESOURCE_OPTIONS, UsageError
from llm_sandbox_nb.options.values import fields_of, resolve, sandbox_options, sure_to_pause
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.doubts.command_rules import MORE_STEPS
from llm_sandbox_nb.trajectory.run_folder import FILES

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_POLL_SECONDS = 0.05
"""Seconds between two polls of the input; short, so that an interrupt takes effect at once."""
_MAX_LINE_BYTES = 1_000_000
_MAX_QUESTION_CHARACTERS = 20_000
"""Maximum number of printed characters of a call or an observation."""
_PRINTED_EVENTS = (
    ev.SandboxReady,
    ev.ArtifactSaved,
    ev.ArtifactRemoved,
    ev.ArtifactSkipped,
    ev.ConnectionMade,
    ev.Noted,
)
"""Events that are printed while a question waits for its answer."""


def run_command(arguments: argparse.Namespace) -> int:
    """Run the task; print progress, answer, files and, as the last line, the run's folder.

    Raises:
        UsageError: if an option, a settings file or an input is wrong; nothing was started.
    """
    return run_task(vars(arguments))[0]


def examples_command(arguments: argparse.Namespace) -> int:
    """List the examples, or run one and check its result; the model is scripted unless another is named.

    Raises:
        UsageError: if the example is unknown, or an option is wrong; nothing was started.
    """
    from llm_sandbox_nb.examples.checks import read_files
    from llm_sandbox_nb.examples.gallery import EXAMPLES

    flags = vars(arguments)
    name = flags.pop("name")
    if name is None:
        width = max(map(len, EXAMPLES))
        print("\n".join(f"{example.name:<{width}}  {example.title}" for example in EXAMPLES.values()))
        return ENDED_WELL
    example = EXAMPLES.get(name)
    if example is None:
        raise UsageError(f"There is no example {name}{did_you_mean(name, list(EXAMPLES))}")
    flags |= {QUERY.name: example.task, "input_dir": example.inputs and str(example.inputs)}
    flags["model"] = flags["model"] or example.model
    code, run = run_task(flags)
    if run is None or code:
        return code
    problem = example.check(read_files(run.folder / FILES))
    print(
        harmless(f"Check      {problem or 'the result is right'}"), file=sys.stderr if problem else sys.stdout
    )
    return FAILED if problem else ENDED_WELL


def run_task(flags: dict[str, Any]) -> tuple[int, Run | None]:
    """Run the task of these flags and print the events. Return the exit code and the run (None if it did not start).

    Raises:
        UsageError: if an option, a settings file or an input is wrong; nothing was started.
    """
    if (task := flags.pop("task", None)) is not None:
        if flags[QUERY.name] is not None:
            raise UsageError("The task was given twice: leave out --query or the other text.")
        flags[QUERY.name] = task
    values = resolve(flags, os.environ)
    _check(values)
    for path in values["settings"]:
        print(f"Settings   {path}", flush=True)
    started: list[Run] = []
    try:
        problem, code = run_to_end(lambda: _solve(values, started), started)
    except NotStartedError as error:
        print(harmless(str(error)), file=sys.stderr)
        return error.code, None
    (run,) = started
    if values["save_litellm_response"]:
        save_responses(run.trajectory, run.folder / RESPONSES, values["api_base"])
    print_result(run, problem, flags)
    return exit_code_of(run) if code is None else code, run


def exit_code_of(run: Run) -> int:
    return exit_code(run.stop_reason, run.trajectory.state(live=False).check)


class NotStartedError(LLMSandboxError):
    """Raised if no run was started."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _check(values: dict[str, Any]) -> None:
    """Check the options before slow imports, as far as possible."""
    if not (values["query"] or "").strip():
        raise UsageError("""The task is missing: give one with --query "How many r's are in strawberry?".""")
    if not (values["model"] or "").strip():
        raise UsageError(
            "There is no model: name one with --model (for example openai/gpt-5), in $LLM_NAME or in a settings file."
        )
    option = sure_to_pause(values["step"], values["approve"])
    if option and values["on_pause"] == "ask":
        from llm_sandbox_nb.agent.control.frontends import can_answer

        if not can_answer(sys.stdin):
            raise UsageError(
                f"{option} needs a person at the terminal, and there is no input here: leave it out, or "
                "choose another action: --on_pause stop, --on_pause continue, or --break EXPR --on_pause stop."
            )
    check_function_names(values)
    if values["check_files"] and not values["check"]:
        raise UsageError(
            "--check_files are the files of a check: name its command too, as in --check 'pytest'."
        )
    for name in values["check_files"]:
        if not expanded(name).exists():
            raise UsageError(f"--check_files: {name} does not exist; check the path.")
    if values["input_dir"] and not expanded(values["input_dir"]).exists():
        raise UsageError(f"--input_dir: {values['input_dir']} does not exist; check the path.")


def run_to_end(work: Callable[[], Awaitable[None]], started: list[Run]) -> tuple[str, int | None]:
    """Await `work`. Return an error message, which may be empty, and an exit code.

    If the exit code is None, the run's stop reason decides on the exit code of the command. `work` adds the run to
    `started` once the run exists.

    Raises:
        NotStartedError, UsageError: if no run was started.
    """
    from llm_sandbox_nb.agent.errors import RunError
    from llm_sandbox_nb.model.contract import ModelError
    from llm_sandbox_nb.sandbox.errors import SandboxError

    try:
        asyncio.run(_until_signal(work, started))
    except RunError as error:
        return str(error), SANDBOX_ERROR if isinstance(error.__cause__, SandboxError) else None
    except ModelError as error:
        raise NotStartedError(str(error), MODEL_ERROR) from error
    except SandboxError as error:
        raise NotStartedError(str(error), SANDBOX_ERROR) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        if not started:
            raise NotStartedError("Interrupted.", INTERRUPTED) from error
        return "Interrupted.", INTERRUPTED
    except (ValueError, OSError) as error:
        if started:
            raise
        raise UsageError(str(error)) from error
    return "", None


async def _until_signal(work: Callable[[], Awaitable[None]], started: list[Run]) -> None:
    """Await `work`. The first Ctrl-C asks the run to stop. A second Ctrl-C, SIGTERM or SIGHUP cancels the work."""
    from llm_sandbox_nb.agent.errors import ControlError

    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if started and not started[-1].control.stopped:
            with contextlib.suppress(ControlError):  # the run has not begun, or is over
                started[-1].control.stop(source="terminal")
                return
        task.cancel()

    on_signals(stop, signal.SIGINT)
    on_signals(task.cancel, signal.SIGTERM, signal.SIGHUP)
    await work()


async def _solve(values: dict[str, Any], started: list[Run]) -> None:
    from llm_sandbox_nb.agent.run_limits import RunLimits
    from llm_sandbox_nb.model.contract import ModelSettings
    from llm_sandbox_nb.model.retries import RetryPolicy
    from llm_sandbox_nb.runs.solve import solve

    prompt = TerminalPrompt(sys.stdin, sys.stdout)
    await solve(
        values["query"],
        sandbox_options=sandbox_options(values),
        inputs=values["input_dir"],
        limits=RunLimits(**fields_of(values, "limits")),
        settings=ModelSettings(**fields_of(values, "settings") | {"extra_body": values["extra_body"] or {}}),
        retries=RetryPolicy(**fields_of(values, "retries")),
        tools=functions_of(values, "tool"),
        doubts=functions_of(values, "doubt"),
        listeners=(Printer(sys.stdout), prompt.listen),
        on_run=started.append,
        break_when=functions_of(values, "break_when"),
        on_pause=prompt.ask if values["on_pause"] == "ask" else values["on_pause"],
        **fields_of(values),
    )


_RESUMABLE = frozenset(
    {
        "model_error",
        "steps",
        "tokens",
        "total_tokens",
        "cost",
        "time",
        "interrupted",
        "no_answer",
        "refused",
        "repeated",
    }
)
_REPEATED_FLAGS = (
    *("settings", "api_base", "api_key_env", "isolation", "network", "ca_bundle", "index_url", "proxy"),
    *(option.name for option in RESOURCE_OPTIONS),
)
_REPEATED_LISTS = ("allow", "secret", "mcp", "mcp_allow", "tool", "doubt")
"""Options that a resumed run does not take from its record, like `_REPEATED_FLAGS`: they must be given again."""


def resume_line(run: Run, flags: Mapping[str, Any]) -> str:
    """Return a message with the command that continues a run. `flags` are the flags that started the run."""
    words = ["llm-sandbox-nb", "resume", str(run.folder)]
    for name in _REPEATED_FLAGS:
        if flags.get(name):
            words += [f"--{name}", str(flags[name])]
    for name in _REPEATED_LISTS:
        for value in flags.get(name) or ():
            words += [f"--{name}", value]
    start, changed, finish = run.trajectory.start, run.trajectory.changed, run.trajectory.finish
    limits = {
        "steps": "--steps",
        "tokens": "--tokens",
        "total_tokens": "--total_tokens",
        "cost": "--budget",
        "time": "--time",
    }
    for reason, flag in limits.items():
        set_limits = [start.settings.get("limits") if start else {}, *(change.limits for change in changed)]
        values = [limit[reason] for limit in set_limits if isinstance(limit, dict) and reason in limit]
        if run.stop_reason == reason and values and isinstance(values[-1], int | float):
            taken = math.ceil(finish.wall_time) if finish and reason == "time" else 0
            words += [flag, f"{max(values[-1], taken) * 2:.10g}"]
    loop = next((doubt for doubt in run.doubts if doubt.text.endswith(MORE_STEPS)), None)
    warning = f"More steps will not help: {loop.line.removesuffix(MORE_STEPS)}. " if loop else ""
    return f"{warning}`{shlex.join(words)}` continues this run."


def print_result(run: Run, problem: str, flags: Mapping[str, Any]) -> None:
    """Print answer, files and folder to stdout, and the error and the command that continues the run to stderr."""
    if run.answer:
        print(f"\nAnswer\n{harmless(run.answer)}")
    if doubts := doubts_text(run.doubts):
        print(f"\n{doubts}")
    if run.files:
        print("\nFiles")
        for file in run.files.values():
            print(f"  {harmless(f'{FILES}/{file.name}')} ({format_size(file.size)})")
    print(f"\n{run.folder}", flush=True)
    why = problem or run.error or ""
    said = [why if not why or why.endswith((".", "!", "?")) else f"{why}."]
    if run.stop_reason in _RESUMABLE:
        said.append(resume_line(run, flags))
    if any(said):
        print(harmless(" ".join(filter(None, said))), file=sys.stderr, flush=True)


def check_function_names(values: Mapping[str, Any]) -> None:
    """Raise UsageError if a function is not given as FILE.py:NAME with an existing file. The files are not run."""
    for option in ("break_when", "tool", "doubt"):
        for name in values[option]:
            file, _, function = name.rpartition(":")
            if not file or not function.isidentifier() or not expanded(file).is_file():
                raise UsageError(f"--{option} must be FILE.py:NAME of an existing Python file, not {name!r}.")


def functions_of(values: Mapping[str, Any], option: str) -> list[Callable[..., Any]]:
    """Run the files that an option names in the form `FILE.py:NAME`, and return the functions.

    Raises:
        UsageError: if a file fails, or lacks the function.
    """
    functions = []
    for name in values[option]:
        file, _, function = name.rpartition(":")
        try:
            found = runpy.run_path(str(expanded(file))).get(function)
        except Exception as error:
            raise UsageError(f"--{option}: {file} cannot be run: {type(error).__name__}: {error}.") from error
        if not callable(found):
            raise UsageError(f"--{option}: {file} has no function {function}.")
        functions.append(found)
    return functions


class TerminalPrompt:
    """Questions at pauses, line by line. Without an answer, the call is refused or the run is ended.

    To keep the run's output above the question, register `listen` with the run after the listener that prints events.
    """

    def __init__(self, source: TextIO | None, out: TextIO) -> None:
        self._source = source
        self._out = out
        self._read = b""
        self._ended = source is None
        self._ready = asyncio.Event()
        """Event that is set as soon as the sandbox is ready."""
        self._asked: Callable[[], str] | None = None
        """Function that returns the current question; None while the run asks nothing."""

    def listen(self, event: ev.Event) -> None:
        """Repeat the open question after an event, such as the ready sandbox, was printed below the question."""
        if isinstance(event, ev.SandboxReady):
            self._ready.set()
        if self._asked is not None and isinstance(event, _PRINTED_EVENTS):
            self._say(self._asked())

    async def ask(self, run: Run) -> None:
        """Let a person decide on the next action of the run; see `execute_debug_command` for the commands."""
        from llm_sandbox_nb.agent.control.frontends import Prompt

        prompt = Prompt(run.control, source="terminal", trajectory=run.trajectory)
        if run.trajectory.sandbox is None:
            self._say("\nThe sandbox starts; then you are asked.\n")
            await self._ready.wait()  # the question says where the call would run
        text = f"{prompt.text[:_MAX_QUESTION_CHARACTERS]}\n" if prompt.text else ""
        self._asked = lambda: f"\n{text}{prompt.hint}" if prompt.open else ""
        try:
            self._say(self._asked())
            while prompt.open:
                line = await self._line()
                if line is None and run.control.refuse():
                    self._say("\nNobody answers: the call is not made.\n")
                    return
                if line is None:
                    self._say("\nNobody answers: the run is ended.\n")
                    run.control.stop(source="terminal")
                    return
                if shown := prompt.answer(line):
                    self._say(f"{shown}\n")
                if prompt.open:
                    self._say(prompt.hint)
        finally:
            self._asked = None

    def _say(self, text: str) -> None:
        self._out.write(harmless(text))
        self._out.flush()

    async def _line(self) -> str | None:
        """Return the next line; None at the end of the input.

        The input is polled, because a thread that waits for input could not be ended.
        """
        while b"\n" not in self._read and not self._ended:
            assert self._source is not None
            number = self._source.fileno()
            if not select.select([number], [], [], 0)[0]:
                await asyncio.sleep(_POLL_SECONDS)
                continue
            data = os.read(number, 65536)
            self._read += data
            self._ended = not data or len(self._read) > _MAX_LINE_BYTES
        if not self._read:
            return None
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace")
