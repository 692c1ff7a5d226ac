"""The subcommands of `%sandbox` about runs: list, load, export, preview, rewind, undo, resume, fork, compare, replay.

The last seven apply to the newest run of the notebook, or to the run that `--run` names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llm_sandbox_nb.agent.control.frontends import decide, execute_debug_command
from llm_sandbox_nb.agent.control.question import question
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.magic_line import (
    check_count,
    load_arguments,
    split_words,
    take_flag,
    take_value,
    variable_name,
)
from llm_sandbox_nb.notebook.saved_runs import MovedRuns
from llm_sandbox_nb.notebook.solve_card import CellResumeDisplay
from llm_sandbox_nb.options.parser import Parser, add_runs_options, prune_rule
from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.runs.catalog import list_runs, plan_prune, prune, runs_json, runs_text
from llm_sandbox_nb.trajectory.decisions import PauseDecision
from llm_sandbox_nb.trajectory.replay_outcome import replayed_run
from llm_sandbox_nb.trajectory.run_folder import run_folders

if TYPE_CHECKING:
    from llm_sandbox_nb.runs.rewind import What
    from llm_sandbox_nb.runs.run import Run

NO_RUN = (
    "No run is active: start one with a %%sandbox cell. These commands are for a second thread of this kernel "
    "(a subshell); the panel and the buttons of the card need no second thread."
)
_MAX_LISTED_RUNS = 30
_USAGE = {
    "preview": "preview STEP [both|files|conversation] [--json] [--run RUN]",
    "rewind": "rewind STEP [both|files|conversation] [--others] [--run RUN]",
    "undo": "undo [--others] [--run RUN]",
    "resume": "resume [--say TEXT] [--edit JSON] [--mcp SERVER] [--mcp-allow NAME] [--others] [--in-place] [--run RUN]",
    "fork": "fork STEP [-o NAME] [--json] [--run RUN]",
    "compare": "compare [RUN...] [--run RUN]",
    "replay": "replay [--ignore EXPR] [--ignore-files PATTERN] [--run RUN]",
}


@dataclass(eq=False)
class RunCommands:
    """Subcommands for runs. Each method is a subcommand and prints the result."""

    newest: Run | None
    """The newest run that began in this kernel; None before the first run."""
    folder: Path
    """The folder with the notebook's runs."""
    namespace: dict[str, Any]
    """The user's variables, which may hold runs."""
    find_run: Callable[[str], Run]
    """Function that returns the run with a given name or folder. A cell can resume this run."""
    show: Callable[[Run], None]
    """Function that shows the card of a run."""
    moved: Callable[[], MovedRuns] = MovedRuns
    """Function that returns the runs that the notebook's cards show, but that are not in `folder`."""

    def runs(self, rest: str) -> None:
        """List the newest runs, or remove some."""
        arguments = _runs_arguments(rest)
        try:
            days, keep = prune_rule(arguments)
        except UsageError as error:
            raise SandboxUsageError(str(error)) from None
        if arguments.json:
            print(json.dumps(runs_json(list_runs(self.folder, elsewhere=self.moved().folders)), indent=2))
            return
        if not arguments.prune:
            moved = self.moved()
            lines = [runs_text(self.folder, _MAX_LISTED_RUNS, moved.folders), moved.hint]
            print(plain("\n".join(filter(None, lines))))
            return
        plan = plan_prune(list_runs(self.folder), days=days, keep=keep)
        print(plain(plan.text()))
        if plan.remove and (arguments.yes or _confirmed()):
            problems = prune(plan)
            done = f"Removed {len(plan.remove) - len(problems)} of {len(plan.remove)}."
            print(plain("\n".join([*problems, done])))
        elif plan.remove:
            print("Nothing was removed.")

    def load(self, rest: str) -> None:
        """Show the card of a run again. With `-o NAME`, assign the run to this variable."""
        name, variable = load_arguments(rest)
        run = self.find_run(name)
        if variable:
            self.namespace[variable] = run
        self.show(run)

    def export(self, rest: str) -> None:
        """Write a run as one HTML file, by default `RUN.html` in the working directory."""
        from llm_sandbox_nb.card.export import NO_VIEW, ExportError, export_html, has_view

        words = split_words("export RUN [FILE]; %sandbox runs lists the runs", rest, 1, 2)
        run = self.find_run(words[0])
        try:
            path = export_html(run, words[1] if len(words) == 2 else f"{run.folder.name}.html")
        except ExportError as error:
            raise SandboxInputError(str(error)) from error
        print(f"Written: {path}" if has_view() else f"Written: {path}\n{NO_VIEW}")

    def preview(self, rest: str) -> None:
        """Print the changes of this run and of other runs that a rewind would undo."""
        words, run = self._words("preview", rest, 1, 3)
        as_json = take_flag(words, "--json")
        found = run.preview(*_destination("preview", words))
        print(json.dumps(found.to_json()) if as_json else plain(str(found)))

    def rewind(self, rest: str) -> None:
        """Print the effect of a rewind, then rewind."""
        words, run = self._words("rewind", rest, 1, 3)
        others = take_flag(words, "--others")
        step, what = _destination("rewind", words)
        print(plain(str(run.preview(step, what))))
        print(plain(str(run.rewind(step, what, others=others))))

    def undo(self, rest: str) -> None:
        """Undo the newest rewind."""
        words, run = self._words("undo", rest, 0, 1)
        others = take_flag(words, "--others")
        check_count(_USAGE["undo"], words, 0, 0)
        print(plain(str(run.undo(others=others))))

    def resume(self, rest: str) -> None:
        """Continue a run, optionally with a message to the model or changed arguments of the next call."""
        words, run = self._words("resume", rest, 0, 100)
        in_place, others = take_flag(words, "--in-place"), take_flag(words, "--others")
        usage = _USAGE["resume"]
        said, edited = take_value(usage, words, "--say"), take_value(usage, words, "--edit")
        mcp, allowed = _take_values(usage, words, "--mcp"), _take_values(usage, words, "--mcp-allow")
        check_count(usage, words, 0, 0)
        if edited is not None:
            _edit_next_call(run, edited)
        display = run.context.resume_display
        if in_place and isinstance(display, CellResumeDisplay):
            run.context.resume_display = display.in_place
        try:
            run.resume(said, others=others, mcp=mcp or None, mcp_allow=allowed or None)
        finally:
            run.context.resume_display = display

    def fork(self, rest: str) -> None:
        """Create a second run that begins after a step of the first run, in a new sandbox."""
        words, run = self._words("fork", rest, 1, 4)
        as_json, usage = take_flag(words, "--json"), _USAGE["fork"]
        names = _take_values(usage, words, "-o") + _take_values(usage, words, "--out")
        check_count(usage, [*words, *names[1:]], 1, 1)
        name = variable_name(names[0]) if names else None
        other = run.fork(_step("fork", words[0]))
        if name:
            self.namespace[name] = other
        if as_json:
            print(json.dumps({"folder": other.folder.name}))
            return
        where = f"The variable {name} holds the fork: {name}.resume() continues it."
        if not name:
            where = f"%sandbox load {other.folder.name} -o NAME keeps the fork in a variable."
        print(plain(f"Forked after step {words[0]} into {other.folder}. {where}"))

    def compare(self, rest: str) -> None:
        """Show runs side by side, or the attempts of one run."""
        from IPython import display

        words, run = self._words("compare", rest, 0, 20)
        show: Any = display.display
        show(run.compare(*(self._find(word) for word in words)))

    def replay(self, rest: str) -> None:
        """Replay a run and print the differences."""
        words, run = self._words("replay", rest, 0, 100)
        usage = _USAGE["replay"]
        ignored, files = _take_values(usage, words, "--ignore"), _take_values(usage, words, "--ignore-files")
        check_count(usage, words, 0, 0)
        print(plain(str(run.replay(ignored, ignore_files=files))))

    def _words(self, name: str, rest: str, least: int, most: int) -> tuple[list[str], Run]:
        words = split_words(_USAGE[name], rest, 0, 100)
        named = take_value(_USAGE[name], words, "--run")
        run = None if named is None else self._find(named)
        check_count(_USAGE[name], words, least, most)
        return words, run or self._last()

    def _last(self) -> Run:
        if self.newest is not None:
            return self.newest
        own = [*run_folders(self.folder), *self.moved().folders]
        for folder in sorted(own, key=lambda folder: folder.name, reverse=True):
            run = self.find_run(str(folder))
            if replayed_run(run.trajectory.start) is None:
                return run
        raise SandboxInputError("This notebook has no run yet: a %%sandbox cell starts one.")

    def _find(self, name: str) -> Run:
        if self.newest is not None and name in (self.newest.folder.name, str(self.newest.folder)):
            return self.newest
        return self.find_run(name)


def _take_values(usage: str, words: list[str], option: str) -> list[str]:
    """Remove an option that may be repeated, and return its values."""
    found = []
    while (value := take_value(usage, words, option)) is not None:
        found.append(value)
    return found


def _edit_next_call(run: Run, text: str) -> None:
    """Change the arguments of the waiting call.

    After a rewind, no call waits. Then rewind to the next call of the newest earlier attempt that continued from this
    step, and change that call.
    """
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise SandboxInputError("--edit needs the arguments of the call as a JSON object.")
    step = run.trajectory.ready_at
    if step is not None and all(call.finished for newest in run.steps[-1:] for call in newest.calls):
        attempts = [
            branch for branch in run.attempts if not branch.head and branch.step == step < branch.steps
        ]
        if attempts:
            run.rewind(step + 1, "conversation", before="call", attempt=attempts[-1])
    run.edit(arguments)


def _destination(name: str, words: list[str]) -> tuple[int, What]:
    what: What = "both"
    match words:
        case [_]:
            pass
        case [_, ("both" | "files" | "conversation") as given]:
            what = given
        case _:
            _wrong(name)
    return _step(name, words[0]), what


def _runs_arguments(rest: str) -> argparse.Namespace:
    parser = Parser(prog="%sandbox runs", add_help=False)
    add_runs_options(parser)
    try:
        parsed, unknown = parser.parse_known_args(split_words("runs [--prune ...]", rest, 0, 20))
        if unknown:
            parser.unknown(unknown)
    except UsageError as error:
        said = str(error).replace("see `%sandbox runs --help`", "%sandbox? explains it")
        raise SandboxUsageError(said) from None
    return parsed


def _confirmed() -> bool:
    try:
        return input("Remove these runs? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, NotImplementedError):
        raise SandboxUsageError("This notebook cannot ask, so nothing was removed: add --yes.") from None


def _step(name: str, word: str) -> int:
    if not word.isdecimal():
        _wrong(name)
    return int(word)


def _wrong(name: str) -> NoReturn:
    raise SandboxUsageError(f"The command is %sandbox {_USAGE[name]}.")


def execute_line_command(run: Run | None, command: str, rest: str) -> str:
    """Execute the decision of a `%sandbox` line, and return the text to print.

    Raises:
        SandboxInputError: if no run is active, or the decision is not possible now; nothing was changed.
    """
    if run is None or run.stop_reason is not None:
        raise SandboxInputError(NO_RUN)
    if command == "held":
        held = run.held
        if held is not None:
            return plain(question(held, run.trajectory))
        return "The run is paused." if run.control.paused else "The run continues; no call waits."
    if command == "pause":
        decide(run.control, PauseDecision(), source="magic")
        return "The run pauses before the next request, call or observation."
    if problem := execute_debug_command(run.control, f"{command} {rest}", source="magic"):
        raise SandboxInputError(problem)
    return "Done."
