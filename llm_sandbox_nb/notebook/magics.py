"""The magics: `%%sandbox` gives a task to a model, `%sandbox` manages the notebook's sandbox and runs."""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core import magic, magic_arguments

from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.notebook.errors import SandboxUsageError, plain_errors
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop
from llm_sandbox_nb.notebook.magic_line import (
    line_with_variables,
    parse_line,
    split_words,
    unknown_subcommand,
    with_options,
)
from llm_sandbox_nb.notebook.preparation import IdlePreparation
from llm_sandbox_nb.notebook.sandboxes import Forks, NotebookSandboxes, OpenSandbox, SandboxKeeper
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.runs.event_loops import EventLoops
from llm_sandbox_nb.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from llm_sandbox_nb.notebook.display import Output
    from llm_sandbox_nb.runs.run import Run

_SANDBOX_COMMANDS = ("status", "files", "get", "put", "sh", "fresh", "reset", "stop")
_RUN_COMMANDS = ("runs", "load", "export", "preview", "rewind", "undo", "resume", "fork", "compare", "replay")
_DECISIONS = ("held", "pause", "continue", "step", "edit", "deny", "observe", "say", "change")
_WITH_VARIABLES = (*_RUN_COMMANDS, "files", "get", "put", "model", "benchmark", "train")
"""Subcommands that replace `$name` and `{name}` by a variable's value. Others, such as `sh`, leave both unchanged."""
_SUBCOMMANDS = (
    *_SANDBOX_COMMANDS,
    *_RUN_COMMANDS[:3],
    "model",
    "key",
    "settings",
    "mcp",
    "benchmark",
    "train",
    *_RUN_COMMANDS[3:],
    *_DECISIONS,
)

_MAX_RECENT_RUNS = 8
_MATCHER_ID = "llm_sandbox_nb.SandboxMagics"

_cell_magic: Any = magic.cell_magic("sandbox")
_line_magic: Any = magic.line_magic("sandbox")
_explained: Any = magic_arguments


@magic.magics_class
class SandboxMagics(SandboxSettings, magic.Magics):
    """Give a task to a language model that has its own computer, and manage that computer."""

    def __init__(self, shell: Any = None, **options: Any) -> None:
        super().__init__(shell=shell, **options)
        self._background = BackgroundLoop()
        self._sandboxes = NotebookSandboxes(self._connect)
        self._forks = Forks()
        self._outside = OpenSandbox()
        self._live: Run | None = None
        """The newest run that began in this kernel."""
        self._recent: deque[Run] = deque(maxlen=_MAX_RECENT_RUNS)
        """The newest runs that began in this kernel. Their sandboxes may still be open."""
        self.observe(self._reconsider_keeper, "use_server")
        self._preparation = IdlePreparation(self._background, self._sandboxes, self)
        if getattr(shell, "kernel", None) is not None:
            self._preparation.watch(shell.events)
            shell.observe(self._stop_runs, "exit_now")
        EventLoops.cells_wait = True
        atexit.register(self._close)
        self._complete_with_tab()

    def _reconsider_keeper(self, _: object) -> None:
        if self._background.started:
            self._background.run(self._sandboxes.reconsider())

    def _stop_runs(self, _: object) -> None:
        """Stop all runs, because the kernel ends."""
        for run in tuple(self._recent):  # another thread may add a run
            with suppress(ControlError):  # the run is over
                run.control.stop(source="kernel")

    subcommands: tuple[str, ...] = _SUBCOMMANDS
    """Words that may follow `%sandbox`."""

    def _complete_with_tab(self) -> None:
        """Offer options, models, runs and files at the Tab key. Modules are imported at first use."""
        completer: Any = getattr(self.shell, "Completer", None)
        if completer is None:
            return

        def match(context: Any) -> dict[str, Any]:
            line = context.line_with_cursor[: context.cursor_position].lstrip()
            kind = line.partition(" ")[0]
            first = not "".join(context.full_text.splitlines()[: context.cursor_line]).strip()
            if (
                " " not in line
                or kind not in ("%sandbox", "%%sandbox")
                or (kind == "%%sandbox" and not first)
            ):
                return {"completions": []}
            from IPython.core.completer import SimpleCompletion

            from llm_sandbox_nb.notebook.completion import complete_cell, complete_line

            word, found = (complete_cell if kind == "%%sandbox" else complete_line)(line, self)
            shown = [SimpleCompletion(text=text, type="param") for text in found]
            return {"completions": shown, "matched_fragment": word, "suppress": True, "ordered": True}

        others = [
            matcher
            for matcher in completer.custom_matchers
            if getattr(matcher, "matcher_identifier", "") != _MATCHER_ID
        ]
        from IPython.core.completer import context_matcher

        decorate: Any = context_matcher(identifier=_MATCHER_ID, priority=200)
        completer.custom_matchers[:] = [*others, decorate(match)]

    @magic.no_var_expand
    @_cell_magic  # type: ignore[untyped-decorator]
    @_explained.magic_arguments(name="%sandbox")  # type: ignore[untyped-decorator]
    @with_options
    def sandbox_cell(self, line: str, cell: str) -> None:
        """Give the task below to a model, which works in this notebook's sandbox until it submits.

        The cell waits for the end, shows every step as it happens, and fails when the run fails. Files in the
        sandbox's output folder are shown and kept in sandbox-runs/. The model reads the task exactly as written; only
        --vars fills in variables.

        For example: %%sandbox -m scripted/strawberry -o result
        """
        with plain_errors():
            from llm_sandbox_nb.notebook.cell import CellRun

            self.read_files()
            options = parse_line(self.sandbox_cell.parser, line, self._namespace)
            run = CellRun(self._background, self._sandboxes, self, self.shell)
            run.run(options, cell, lambda run, output: self._on_run(options.out, run, output))

    @magic.no_var_expand
    @_line_magic  # type: ignore[untyped-decorator]
    def sandbox_line(self, line: str) -> None:
        """Manage this notebook's sandbox and runs.

        %sandbox status           the running sandbox, and what it protects from
        %sandbox files [FOLDER]   the files in the sandbox's output folder, or in FOLDER
        %sandbox get PATH [TO]    copy a file or folder out of the sandbox; --replace replaces files with the same names
        %sandbox put PATH...      copy files or folders into the sandbox's input folder
        %sandbox sh COMMAND       run a command in the sandbox's shell
        %sandbox fresh            end the sandbox, so that the next cell begins in a new one: for the top of a notebook
        %sandbox reset            replace the sandbox with a new, empty one
        %sandbox stop             end the sandbox; with --idle: of other notebooks' sandboxes, the one idle longest
        %sandbox runs             the runs of this notebook; --prune --older-than DAYS | --keep N removes some
        %sandbox load RUN [-o NAME]   show a run again, and keep it in a variable
        %sandbox export RUN [FILE]    write a run as one HTML file that opens anywhere
        %sandbox model [NAME]     choose a model, or list the models; --local: also models of servers on this machine
        %sandbox key [PROVIDER]   type the key of a provider into a password field; --forget: forget the key
        %sandbox settings         every setting and where its value comes from
        %sandbox mcp [--approve auto|edits|ask] [--out FILE]   let an outside agent, such as Claude Code, use the
                                  sandbox: shows how to connect, and the agent's calls; --stop ends this access,
                                  --new-token replaces the token, --revoke makes the token invalid

        Measure a model on many problems; the options are those of `llm-sandbox-nb benchmark`:

        %sandbox benchmark list       the tasks that come with the package
        %sandbox benchmark run TASK... --model NAME [--mode sandbox,llm] [--out FOLDER] ...
        %sandbox benchmark report FOLDER [--html FILE]   the results

        Train a model to work in sandboxes; the options are those of `llm-sandbox-nb train`:

        %sandbox train run --config FILE [--out FOLDER] ...     train, or resume, with live plots
        %sandbox train watch FOLDER [--step N] [--once]         the plots, and the rollouts of a step
        %sandbox train evaluate FOLDER | data build | data show

        Rewind, fork and compare the newest run, or the one named by --run RUN:

        %sandbox preview STEP [both|files|conversation]  what a rewind would change
        %sandbox rewind STEP [both|files|conversation]   rewind to the end of a step; --others: also undo what other
                                      runs have changed since
        %sandbox undo [--others]      undo the newest rewind
        %sandbox resume [--say TEXT] [--edit JSON]   continue the run; before that, say something to the model, or
                                      change its next call; --others: as for rewind; --mcp SERVER and --mcp-allow NAME:
                                      needed if another kernel began the run with tools of MCP servers
        %sandbox fork STEP [-o NAME]  a second run from there, in a new sandbox
        %sandbox compare [RUN...]     compare runs, or the attempts of one run
        %sandbox replay [--ignore EXPR] [--ignore-files PATTERN]   replay a run: what differs?

        During a run, from another thread of this kernel (a subshell):

        %sandbox held             where the run is paused, and the call that waits
        %sandbox pause | continue | step | edit NAME=VALUE... | deny [REASON] | observe TEXT | say TEXT |
                 change NAME=VALUE...   a decision, as at the prompt of a paused cell
        """
        with plain_errors():
            self.read_files()
            name, _, rest = line.strip().partition(" ")
            if name in _WITH_VARIABLES:
                rest = line_with_variables(rest, self._namespace)
            self._execute(name, rest)

    def _execute(self, name: str, rest: str) -> None:
        """Execute a subcommand of `%sandbox`. Modules are imported here, so that the extension loads fast."""
        if name in _SANDBOX_COMMANDS:
            from llm_sandbox_nb.notebook.cell_task import sandbox_options
            from llm_sandbox_nb.notebook.sandbox_commands import SandboxCommands

            options = functools.partial(sandbox_options, self)
            commands = SandboxCommands(self._background, self._sandboxes, options, self._forks)
            getattr(commands, name)(rest)
        elif name in _RUN_COMMANDS:
            from llm_sandbox_nb.notebook.run_commands import RunCommands
            from llm_sandbox_nb.notebook.saved_runs import moved_runs, show_run

            moved = functools.partial(moved_runs, self, self._namespace)
            show = functools.partial(show_run, shell=self.shell, caps=self.caps())
            commands_of_runs = RunCommands(self._live, self.folder, self._namespace, self._find, show, moved)
            getattr(commands_of_runs, name)(rest)
        elif name in _DECISIONS:
            from llm_sandbox_nb.notebook.run_commands import execute_line_command

            print(execute_line_command(self._live, name, rest))
        elif name == "model":
            from llm_sandbox_nb.notebook.model_command import ModelCommand

            ModelCommand(self._background, self)(rest)
        elif name == "key":
            from llm_sandbox_nb.notebook.model_command import key_command

            key_command(rest, self)
        elif name == "settings":
            split_words("settings", rest, 0, 0)
            print(plain(self.listed()))
        elif name == "mcp":
            from llm_sandbox_nb.notebook.cell_task import sandbox_options
            from llm_sandbox_nb.notebook.mcp_command import McpCommand

            started = functools.partial(self._on_run, None)
            options = functools.partial(sandbox_options, self)
            command = McpCommand(
                self._background,
                self._sandboxes,
                options,
                self,
                self.shell,
                self._outside,
                started,
                lambda: parse_line(self.sandbox_cell.parser, "", self._namespace),
            )
            command(rest)
        elif name == "benchmark":
            from llm_sandbox_nb.notebook.benchmark_command import BenchmarkCommand

            BenchmarkCommand(self._background, self, self.shell)(rest)
        elif name == "train":
            from llm_sandbox_nb.notebook.train_command import TrainCommand

            TrainCommand(self.shell)(rest)
        else:
            raise SandboxUsageError(unknown_subcommand(name, _SUBCOMMANDS))

    def _prepare(self, run: Run, output: Output | None = None) -> None:
        """Let cells that resume this run show a card, and register later forks of this run."""
        from llm_sandbox_nb.notebook.solve_card import CellResumeDisplay

        if output is not None or not isinstance(run.context.resume_display, CellResumeDisplay):
            run.context.resume_display = CellResumeDisplay(
                self._background, self._sandboxes, self, self.shell, output
            )
        run.context.on_fork = self._forks.add

    def _find(self, name: str) -> Run:
        from llm_sandbox_nb.notebook.saved_runs import find_run
        from llm_sandbox_nb.runs.run import Run

        held = self._namespace.get(name)
        if isinstance(held, Run):
            run = held
        else:
            here = [recent for recent in self._recent if name in (recent.folder.name, str(recent.folder))]
            run = here[-1] if here else find_run(name, self.folder, self._forks)
        run.context.isolation_setting, run.context.network_setting = self.isolation, self.network
        self._prepare(run)
        return run

    def _on_run(self, name: str | None, run: Run, output: Output) -> None:
        self._live = run
        self._recent.append(run)
        self._prepare(run, output)
        if name:
            self._namespace[name] = run

    @property
    def folder(self) -> Path:
        from llm_sandbox_nb.notebook.saved_runs import runs_folder

        return runs_folder(self, self._namespace)

    @property
    def _namespace(self) -> dict[str, Any]:
        shell: Any = self.shell
        namespace: dict[str, Any] = shell.user_ns
        return namespace

    async def _connect(self) -> SandboxKeeper | None:
        if not self.use_server:
            return None
        from llm_sandbox_nb.notebook.server_client.keeper import connect_server

        return await connect_server()

    async def _close_all(self) -> None:
        try:
            await self._outside.close("kernel")
        finally:
            await asyncio.gather(self._forks.close(), self._sandboxes.close())

    def _close(self) -> None:
        """Close the sandboxes at the end of the kernel, without a long delay."""
        if self.shell is not None:
            self._preparation.unwatch(self.shell.events)
        if self._background.started or self._forks.open:
            with suppress(TimeoutError, SandboxError, OSError, RuntimeError):
                self._background.run(self._close_all(), timeout=5)
            self._background.stop()
