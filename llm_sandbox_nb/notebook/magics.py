"""The magics: `%%sandbox` gives a task to a model, `%sandbox` looks after the notebook's sandbox."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core import magic, magic_arguments

from llm_sandbox_nb.agent.home import Home
from llm_sandbox_nb.notebook.arguments import load_arguments, parse_line, unknown_subcommand, with_options
from llm_sandbox_nb.notebook.background import BackgroundLoop
from llm_sandbox_nb.notebook.errors import SandboxUsageError, plain_errors
from llm_sandbox_nb.notebook.forks import Forks
from llm_sandbox_nb.notebook.naming import notebook_name
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes, SandboxKeeper
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run

_RUN_WORDS = ("held", "pause", "continue", "step", "edit", "skip", "observe", "say", "change")
_TIME_WORDS = ("rewind", "undo", "fork", "compare", "replay")
_SUBCOMMANDS = (
    "status", "files", "get", "put", "sh", "reset", "stop", "runs", "load", "export", "benchmark",
    *_TIME_WORDS, *_RUN_WORDS,
)  # fmt: skip

_cell_magic: Any = magic.cell_magic("sandbox")
_line_magic: Any = magic.line_magic("sandbox")
_explained: Any = magic_arguments


@magic.magics_class
class SandboxMagics(SandboxSettings, magic.Magics):
    """Give a task to a language model that has a computer of its own, and look after that computer."""

    def __init__(self, shell: Any = None, **options: Any) -> None:
        super().__init__(shell=shell, **options)
        self._background = BackgroundLoop()
        self._sandboxes = NotebookSandboxes(self._connect)
        self._forks = Forks()
        self._live: Run | None = None
        """The newest run that began here."""
        Home.cells_wait = True
        atexit.register(self._close)

    @magic.no_var_expand
    @_cell_magic  # type: ignore[untyped-decorator]
    @_explained.magic_arguments(name="%sandbox")  # type: ignore[untyped-decorator]
    @with_options
    def sandbox_cell(self, line: str, cell: str) -> None:
        """Give the task below to a model; it works in this notebook's sandbox until it submits.

        The cell waits for the end, shows every step as it happens, and fails when the run fails. Files in the
        sandbox's output folder are shown and kept in sandbox-runs/. The task is taken literally.
        """
        from llm_sandbox_nb.notebook.cell import CellRun

        with plain_errors():
            options = parse_line(self.sandbox_cell.parser, line)
            run = CellRun(self._background, self._sandboxes, self, self.shell)
            run.run(options, cell, lambda run: self._begun(options.out, run))

    @magic.no_var_expand
    @_line_magic  # type: ignore[untyped-decorator]
    def sandbox_line(self, line: str) -> None:
        """Look after this notebook's sandbox.

        %sandbox status           what runs, and what it protects from
        %sandbox files [FOLDER]   the files in its output folder, or in FOLDER
        %sandbox get PATH [TO]    copy a file or folder from it
        %sandbox put PATH...      copy files or folders to its input folder
        %sandbox sh COMMAND       run a command in its shell
        %sandbox reset            replace it by a new, empty one
        %sandbox stop             end it
        %sandbox runs             the runs of this notebook
        %sandbox load RUN [-o NAME]   show a run again, and keep it in a variable
        %sandbox export RUN [FILE]    write a run as one HTML file that opens anywhere

        Measure a model on many problems; the options are those of `llm-sandbox-nb benchmark`:

        %sandbox benchmark list       the tasks that come with the package
        %sandbox benchmark run TASK... --model NAME [--mode sandbox,llm] [--out FOLDER] ...
        %sandbox benchmark report FOLDER [--html FILE]   what came of it

        Back in time, for the newest run or the one named by --run RUN:

        %sandbox rewind STEP [both|files|conversation]   go back to the end of a step
        %sandbox undo                 take the newest rewind back
        %sandbox fork STEP [-o NAME]  a second run from there, with a sandbox of its own
        %sandbox compare [RUN...]     set runs side by side, or the branches of one
        %sandbox replay [--ignore EXPR] [--ignore-files PATTERN]   play a run again: what differs?

        While a run goes on, from another thread of this kernel (a subshell):

        %sandbox held             where it has halted, and the call that waits
        %sandbox pause | continue | step | edit NAME=VALUE... | skip [TEXT] | observe TEXT | say TEXT |
                 change NAME=VALUE...   what to do; the words are those of the prompt in a cell
        """
        with plain_errors():
            name, _, rest = line.strip().partition(" ")
            self._subcommand(name)(rest)

    def _subcommand(self, name: str) -> Callable[[str], None]:
        from llm_sandbox_nb.notebook.cell import sandbox_options
        from llm_sandbox_nb.notebook.commands import SandboxCommands
        from llm_sandbox_nb.notebook.deciding import decide

        if name not in _SUBCOMMANDS:
            raise SandboxUsageError(unknown_subcommand(name, _SUBCOMMANDS))
        if name in _RUN_WORDS:
            return lambda rest: print(decide(self._live, name, rest))
        if name in _TIME_WORDS:
            return self._in_time(name)
        others = {
            "runs": self._show_runs,
            "load": self._load,
            "export": self._export,
            "benchmark": self._measure,
        }
        if name in others:
            return others[name]
        commands = SandboxCommands(
            self._background, self._sandboxes, lambda: sandbox_options(self), self._forks
        )
        command: Callable[[str], None] = getattr(commands, name)
        return command

    def _in_time(self, name: str) -> Callable[[str], None]:
        from llm_sandbox_nb.notebook.commands_in_time import CommandsInTime

        commands = CommandsInTime(self._live, self._runs_folder(), self._namespace, self._find)
        command: Callable[[str], None] = getattr(commands, name)
        return command

    def _prepare(self, run: Run) -> None:
        """What goes on with a run in a cell is shown there."""
        from llm_sandbox_nb.notebook.stage import CellStage

        run.place.stage = CellStage(self._background, self._sandboxes, self, self.shell)
        run.place.on_fork = self._forks.add

    def _find(self, name: str) -> Run:
        from llm_sandbox_nb.agent.run import Run
        from llm_sandbox_nb.notebook.records import find_run

        held = self._namespace.get(name)
        run = held if isinstance(held, Run) else find_run(name, self._runs_folder(), self._forks)
        self._prepare(run)
        return run

    def _show_runs(self, rest: str) -> None:
        from llm_sandbox_nb.notebook.records import runs_text

        if rest.strip():
            raise SandboxUsageError("%sandbox runs takes no arguments.")
        print(runs_text(self._runs_folder()))

    def _load(self, rest: str) -> None:
        from llm_sandbox_nb.notebook.records import show_run

        name, variable = load_arguments(rest)
        run = self._find(name)
        self._keep(variable, run)
        show_run(run, self.shell, self.caps())

    def _export(self, rest: str) -> None:
        from llm_sandbox_nb.notebook.records import export_run

        print(f"Written: {export_run(rest, self._find)}")

    def _measure(self, rest: str) -> None:
        from llm_sandbox_nb.notebook.benchmark_command import BenchmarkCommand

        BenchmarkCommand(self._background, self, self.shell)(rest)

    def _runs_folder(self) -> Path:
        return Path(self.output_dir) / notebook_name(self._namespace)

    def _begun(self, name: str | None, run: Run) -> None:
        self._live = run
        self._prepare(run)
        self._keep(name, run)

    def _keep(self, name: str | None, run: Run) -> None:
        if name:
            self._namespace[name] = run

    @property
    def _namespace(self) -> dict[str, Any]:
        shell: Any = self.shell
        namespace: dict[str, Any] = shell.user_ns
        return namespace

    async def _connect(self) -> SandboxKeeper | None:
        if not self.use_server:
            return None
        from llm_sandbox_nb.notebook.server_client import connect_server

        return await connect_server()

    async def _close_all(self) -> None:
        await asyncio.gather(self._forks.close(), self._sandboxes.close())

    def _close(self) -> None:
        """The kernel ends: put the sandbox away, but do not hold the kernel up for long."""
        if self._background.started or self._forks.open:
            with suppress(TimeoutError, SandboxError, OSError, RuntimeError):
                self._background.run(self._close_all(), timeout=5)
            self._background.stop()
