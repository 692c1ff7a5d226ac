"""`llm-sandbox-nb resume`: continue a run that ended too early, with changed options."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.cli import MODEL_ERROR
from llm_sandbox_nb.cli.printer import Printer, harmless
from llm_sandbox_nb.cli.record_commands import load_run
from llm_sandbox_nb.cli.run_command import (
    NotStartedError,
    TerminalPrompt,
    check_function_names,
    exit_code_of,
    functions_of,
    print_result,
    run_to_end,
)
from llm_sandbox_nb.options.table import QUERY, UsageError
from llm_sandbox_nb.options.values import fields_of, flag_layer, resolve, sandbox_options

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.run import Run

_CHECK_NAMES = ("check", "check_files", "check_tries", "check_timeout")
_PYTHON_TO_SHELL = (
    (re.compile(r"result\.resume\(limits=\{'steps': (\d+)\}\)"), r"--steps \1"),
    (re.compile(r"result\.resume\(limits=\{'cost': ([\d.]+)\}\)"), r"--budget \1"),
    (re.compile(r"result\.resume\(limits=\{'time': (\d+)\}\)"), r"--time \1"),
    (re.compile(r"result\.resume\('([^']*)'\)"), r"llm-sandbox-nb resume RUN '\1'"),
    (re.compile(r"result\.resume\(check=\.\.\.\)"), r"--check COMMAND"),
    (re.compile(r"result\.resume\(model='([^']*)'\)"), r"--model \1"),
    (re.compile(r"solve\(\.\.\., mcp='([^']*)'\)"), r"--mcp \1"),
    (re.compile(r'isolation="(\w+)"'), r"--isolation \1"),
)
"""Advice in error messages: the advice for Python, as a pattern, and its replacement for the shell."""


def resume_command(arguments: argparse.Namespace) -> int:
    """Continue the run, and print the same lines as the command `run`.

    Raises:
        UsageError: if the run is missing or cannot be resumed, or an option is wrong; nothing was started.
    """
    flags = vars(arguments)
    run = load_run(flags.pop("run"))
    text = flags.pop("text")
    given = flag_layer(flags)
    flags[QUERY.name] = run.task
    flags["model"] = flags.get("model") or run.model  # selects the provider, and so the key
    values = resolve(flags, os.environ)
    check_function_names(values)
    print(harmless(f"Resumes    {run.folder}"), flush=True)
    try:
        problem, code = run_to_end(lambda: _resume(run, text, values, given), [run])
    except NotStartedError as error:
        print(harmless(str(error)), file=sys.stderr)
        return error.code
    print_result(run, problem, flags)
    return exit_code_of(run) if code is None else code


async def _resume(run: Run, text: str | None, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from llm_sandbox_nb.agent.errors import InputError
    from llm_sandbox_nb.agent.run_options import OPTION_DEFAULTS
    from llm_sandbox_nb.model.contract import ModelError
    from llm_sandbox_nb.model.retries import RetryPolicy
    from llm_sandbox_nb.runs.resume import ResumeOptions, resume
    from llm_sandbox_nb.trajectory.mcp_calls import recorded_servers

    prompt = TerminalPrompt(sys.stdin, sys.stdout)
    changed = {name: values[name] for name in given}
    options = ResumeOptions(
        text=text,
        model=changed.get("model"),
        settings=fields_of(changed, "settings") or None,
        limits=fields_of(changed, "limits") or None,
        sandbox_options={
            **{
                name: changed[name]
                for name in ("isolation", "profile", "image", "network")
                if name in changed
            },
            **sandbox_options(values),
        },
        api_base=values["api_base"],
        api_key=values["api_key"],
        listeners=(Printer(sys.stdout, resumed=run.trajectory), prompt.listen),
        pause=_pauses(values, given, prompt),
        tools=functions_of(values, "tool") or None,
        doubts=functions_of(values, "doubt") or None,
        retries=RetryPolicy(**fields_of(values, "retries")) if "model_wait" in changed else None,
        mcp=changed.get("mcp") or (values["mcp"] if recorded_servers(run.trajectory.start) else None) or None,
        mcp_allow=values["mcp_allow"] or None,
        check={name: changed[name] for name in _CHECK_NAMES if name in changed},
        run_options={name: changed[name] for name in OPTION_DEFAULTS if name in changed},
    )
    try:
        await resume(run, options)
    except InputError as error:
        raise UsageError(_in_the_shell(str(error))) from error
    except ModelError as error:
        raise NotStartedError(str(error), MODEL_ERROR) from error


def _pauses(values: Mapping[str, Any], given: Mapping[str, Any], prompt: TerminalPrompt) -> dict[str, Any]:
    """Return the rules for pauses that the command line names, and `on_pause`, which recorded rules may need too."""
    rules = {
        "step": values["step"],
        "break": values["break"],
        "break_when": functions_of(values, "break_when"),
        "approve": values["approve"],
    }
    return {
        **{"breakpoints" if name == "break" else name: rules[name] for name in rules if name in given},
        "on_pause": prompt.ask if values["on_pause"] == "ask" else values["on_pause"],
    }


def _in_the_shell(sentence: str) -> str:
    for pattern, flags in _PYTHON_TO_SHELL:
        sentence = pattern.sub(flags, sentence)
    return sentence
