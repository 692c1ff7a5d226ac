"""`llm-sandbox-nb run`: one task, one sandbox, one folder with everything that happened."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.cli import INTERRUPTED, MODEL_ERROR, SANDBOX_ERROR, exit_code
from llm_sandbox_nb.cli.own_functions import check_function_name, function_of
from llm_sandbox_nb.cli.pause_prompt import TerminalPrompt, check_stops
from llm_sandbox_nb.cli.printer import Printer, harmless
from llm_sandbox_nb.formats.llm_in_sandbox import RESPONSES, save_responses
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.options.table import QUERY, UsageError
from llm_sandbox_nb.options.values import resolve, sandbox_limits

if TYPE_CHECKING:
    from llm_sandbox_nb.model.contract import ModelSettings
    from llm_sandbox_nb.runs.run import Run


def run_command(arguments: argparse.Namespace) -> int:
    """Run the task; print progress, answer, files and, as the last line, the run's folder.

    Raises:
        UsageError: an option, a settings file or an input is wrong; nothing was started.
    """
    return run_task(vars(arguments))[0]


def run_task(flags: dict[str, Any]) -> tuple[int, Run | None]:
    """Run the task of these flags and print what happens; the exit code, and the run when one was started.

    Raises:
        UsageError: an option, a settings file or an input is wrong; nothing was started.
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
        problem, code = _solve(values, started)
    except _NotStartedError as error:
        print(error, file=sys.stderr)
        return error.code, None
    (run,) = started
    if values["save_litellm_response"]:
        save_responses(run.trajectory, run.folder / RESPONSES)
    if problem:
        print(problem, file=sys.stderr, flush=True)
    _print_result(run)
    return exit_code(run.stop_reason) if code is None else code, run


class _NotStartedError(Exception):
    """No run was started."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _check(values: dict[str, Any]) -> None:
    """Check what can be checked before anything heavy is imported."""
    if not (values["query"] or "").strip():
        raise UsageError("""There is no task: give one with --query "How many r's are in strawberry?".""")
    if not (values["model"] or "").strip():
        raise UsageError(
            "There is no model: name one with --model (for example openai/gpt-5), in $LLM_NAME or in a settings file."
        )
    check_stops(values)
    for name in values["tool"]:
        check_function_name("tool", name)
    if values["input_dir"] and not Path(values["input_dir"]).expanduser().exists():
        raise UsageError(f"--input_dir: there is no {values['input_dir']}; check the path.")


def _solve(values: dict[str, Any], started: list[Run]) -> tuple[str, int | None]:
    """Run to the end. One sentence about what went wrong, and its code when the stop reason does not tell it.

    `started` gets the run as soon as there is one.
    """
    from llm_sandbox_nb.agent.errors import RunError
    from llm_sandbox_nb.model.contract import ModelError
    from llm_sandbox_nb.sandbox.errors import SandboxError

    try:
        asyncio.run(_until_signal(values, started))
    except RunError as error:
        return str(error), SANDBOX_ERROR if isinstance(error.__cause__, SandboxError) else None
    except ModelError as error:
        raise _NotStartedError(str(error), MODEL_ERROR) from error
    except SandboxError as error:
        raise _NotStartedError(str(error), SANDBOX_ERROR) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        if not started:
            raise _NotStartedError("Interrupted.", INTERRUPTED) from error
        return "Interrupted.", INTERRUPTED
    except (ValueError, OSError) as error:
        if started:
            raise
        raise UsageError(str(error)) from error
    return "", None


async def _until_signal(values: dict[str, Any], started: list[Run]) -> None:
    """Solve; SIGTERM and SIGHUP end the run in good order, as Ctrl-C does."""
    from llm_sandbox_nb.agent.limits import RunLimits
    from llm_sandbox_nb.runs.solve import solve

    if task := asyncio.current_task():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await solve(
        values["query"],
        model=values["model"],
        isolation=values["isolation"],
        profile=values["profile"],
        image=values["image"],
        network=values["network"],
        sandbox_options=_sandbox_options(values),
        inputs=values["input_dir"],
        output_dir=values["output_dir"],
        prompt_config=values["prompt_config"],
        limits=RunLimits(values["steps"], values["tokens"], values["budget"], values["time"]),
        settings=_model_settings(values),
        command_timeout=values["command_timeout"],
        tools=[function_of("tool", name) for name in values["tool"]],
        api_base=values["api_base"],
        api_key=values["api_key"],
        listeners=(Printer(sys.stdout),),
        on_run=started.append,
        step=values["step"],
        breakpoints=values["break"],
        break_when=[function_of("break_when", name) for name in values["break_when"]],
        approve=values["approve"],
        on_pause=TerminalPrompt(sys.stdin, sys.stdout).ask
        if values["on_pause"] == "ask"
        else values["on_pause"],
    )


def _sandbox_options(values: dict[str, Any]) -> dict[str, Any]:
    given = {name: values[name] for name in ("ca_bundle", "index_url", "proxy") if values[name]}
    limits = sandbox_limits(values)
    return given | ({"limits": limits} if limits else {})


def _model_settings(values: dict[str, Any]) -> ModelSettings:
    from llm_sandbox_nb.model.contract import ModelSettings

    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return ModelSettings(
        **{name: values[name] for name in same},
        max_tokens=values["max_tokens_per_call"],
        extra_body=values["extra_body"] or {},
    )


def _print_result(run: Run) -> None:
    if run.answer:
        print(f"\nAnswer\n{harmless(run.answer)}")
    if run.files:
        print("\nFiles")
        for file in run.files.values():
            print(f"  {harmless(str(file.path))} ({format_size(file.size)})")
    print(f"\n{run.folder}", flush=True)
