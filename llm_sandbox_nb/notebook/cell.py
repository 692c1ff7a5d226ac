"""One `%%sandbox` cell: from its options and text to the finished run."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.notebook import arguments as given
from llm_sandbox_nb.notebook.background import BackgroundLoop
from llm_sandbox_nb.notebook.card import Card
from llm_sandbox_nb.notebook.cell_runner import CellRunner, Listener
from llm_sandbox_nb.notebook.errors import SandboxLimitError, SandboxUsageError, in_one_sentence
from llm_sandbox_nb.notebook.halts import Halts, halts_of
from llm_sandbox_nb.notebook.inputs import collect_inputs
from llm_sandbox_nb.notebook.lineage import OFFER, files_of, first_run_of, runs_folder
from llm_sandbox_nb.notebook.live_display import LiveDisplay
from llm_sandbox_nb.notebook.naming import notebook_name
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes, SandboxOptions
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.notebook.watching import Watching

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.limits import RunLimits
    from llm_sandbox_nb.agent.model import ModelSettings
    from llm_sandbox_nb.agent.run import Run
    from llm_sandbox_nb.sandbox.contract import Sandbox

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")


@dataclass(frozen=True)
class CellTask:
    """All that a cell asks for, checked."""

    task: str
    model: str
    sandbox: SandboxOptions
    fresh: bool
    limits: RunLimits
    sampling: ModelSettings
    inputs: dict[str, Path]
    prompt_config: str | None
    api_base: str | None
    api_key: str | None
    on_pause: str | None
    halts: Halts
    files_of: tuple[Run, int] | None


def cell_task(
    options: argparse.Namespace,
    text: str,
    settings: SandboxSettings,
    namespace: dict[str, Any],
    staging: Path,
) -> CellTask:
    """What the cell asks for; variables that it hands in are written to `staging`.

    Raises:
        SandboxUsageError, SandboxInputError: something is wrong or missing; nothing was started.
    """
    if not text.strip():
        raise SandboxUsageError("The task is empty: write below the first line what the model shall do.")
    model = options.model or settings.model
    if not model:
        raise SandboxUsageError(
            "No model is named: add -m, e.g. -m openai/gpt-5, or set %config SandboxMagics.model."
        )
    if options.out is not None:
        given.variable_name(options.out)
    return CellTask(
        task=given.fill_in(text, namespace) if options.vars else text,
        model=model,
        sandbox=sandbox_options(settings, options),
        fresh=options.fresh,
        limits=_limits(options, settings),
        sampling=_sampling(settings),
        inputs=collect_inputs(options.input, namespace, staging, settings.dataframe_format),
        prompt_config=options.prompt_config or settings.prompt_config or None,
        api_base=options.api_base or settings.api_base or None,
        api_key=_api_key(options.api_key_env or settings.api_key_env),
        on_pause=options.on_pause,
        halts=halts_of(options, namespace),
        files_of=files_of(options.from_files_of, runs_folder(settings, namespace), namespace),
    )


def sandbox_options(settings: SandboxSettings, options: argparse.Namespace | None = None) -> SandboxOptions:
    """The sandbox asked for: by the cell, else by the settings.

    Raises:
        SandboxUsageError: there is no such isolation, profile, ...
    """
    from llm_sandbox_nb.sandbox.options import SandboxOptions as Checked

    names = ("isolation", "profile", "image", "network")
    asked = {name: getattr(options, name, None) or getattr(settings, name) or None for name in names}
    wanted = SandboxOptions(
        isolation=asked.pop("isolation") or "auto",
        limits=settings.limits(),
        ca_bundle=settings.ca_bundle or None,
        index_url=settings.index_url or None,
        proxy=settings.proxy or None,
        **asked,
    )
    try:
        checked = {key: value for key, value in dataclasses.asdict(wanted).items() if value is not None}
        bundle = {"ca_bundle": Path(wanted.ca_bundle)} if wanted.ca_bundle else {}
        Checked(**{**checked, **bundle, **({"limits": wanted.limits} if wanted.limits else {})})
    except (ValueError, FileNotFoundError) as error:
        raise SandboxUsageError(str(error)) from error
    return wanted


def _limits(options: argparse.Namespace, settings: SandboxSettings) -> RunLimits:
    from llm_sandbox_nb.agent.limits import RunLimits

    try:
        return RunLimits(
            steps=settings.steps if options.steps is None else given.whole_number("steps", options.steps),
            tokens=settings.tokens,
            cost=settings.budget
            if options.budget is None
            else given.positive_number("budget", options.budget),
            time=settings.time if options.time is None else given.seconds(options.time),
        )
    except ValueError as error:
        raise SandboxUsageError(str(error)) from error


def _sampling(settings: SandboxSettings) -> ModelSettings:
    from llm_sandbox_nb.agent.model import ModelSettings

    try:
        return ModelSettings(**settings.model_settings)
    except TypeError as error:
        known = ", ".join(field.name for field in dataclasses.fields(ModelSettings))
        raise SandboxUsageError(f"SandboxMagics.model_settings holds only: {known}.") from error


def _api_key(variable: str) -> str | None:
    if not variable:
        return None
    if not _VARIABLE.fullmatch(variable):
        raise SandboxUsageError(
            "--api-key-env takes the name of an environment variable, not the key itself."
        )
    key = os.environ.get(variable)
    if not key:
        raise SandboxUsageError(
            f"The environment variable {variable} is not set: put the key there before the kernel starts, "
            f"or with os.environ[{variable!r}] = getpass.getpass()."
        )
    return key


_LIMITS = {
    "steps": "The run used up its steps before the model submitted: allow more with --steps.",
    "tokens": "The conversation reached its limit of tokens before the model submitted: "
    "allow more with %config SandboxMagics.tokens.",
    "cost": "The run used up its budget before the model submitted: allow more with --budget.",
    "time": "The run used up its time before the model submitted: allow more with --time.",
}


class CellRun:
    """Runs what a cell asks for and keeps its card."""

    def __init__(
        self, background: BackgroundLoop, sandboxes: NotebookSandboxes, settings: SandboxSettings, shell: Any
    ) -> None:
        self._background = background
        self._sandboxes = sandboxes
        self._settings = settings
        self._shell = shell

    def run(self, options: argparse.Namespace, text: str, keep: Callable[[Run], None]) -> None:
        """Do the task to its end. `keep` gets the run as soon as there is one.

        Raises:
            SandboxUsageError, SandboxInputError, InputError, ModelError: nothing was started.
            RunError: the run failed.
            SandboxLimitError: it reached a limit before the model submitted.
            KeyboardInterrupt: it was interrupted.
        """
        with tempfile.TemporaryDirectory(prefix="llm-sandbox-nb-") as staging:
            namespace = self._shell.user_ns
            task = cell_task(options, text, self._settings, namespace, Path(staging))
            card = Card(self._settings.caps())
            watching = Watching(task.on_pause)
            display = LiveDisplay(
                card,
                self._shell,
                self._settings.update_interval,
                watching.run_id,
                lambda: watching.make_panel(card, self._shell, self._settings.live_panel),
            )

            def started(run: Run) -> None:
                card.folder = run.folder
                watching.start(run)
                keep(run)

            runner = CellRunner(self._background, card, display, watching.paused)
            self._offer_original_files(task)
            try:
                finished = runner.run(lambda listener: self._solve(task, listener, started, watching))
            finally:
                if notice := self._sandboxes.take_notice():
                    print(notice)
        if finished.stop_reason == "interrupted":
            raise in_one_sentence(
                KeyboardInterrupt("The run was stopped; what was done until then is above.")
            )
        if finished.stop_reason in _LIMITS:
            raise SandboxLimitError(_LIMITS[finished.stop_reason])

    def _offer_original_files(self, task: CellTask) -> None:
        """A cell that ran before finds other files now: say how to have those that it began with."""
        if task.fresh or task.files_of is not None:
            return
        before = first_run_of(task.task, runs_folder(self._settings, self._shell.user_ns))
        if before is not None and self._background.run(self._sandboxes.current()) is not None:
            print(OFFER.format(run=before.name))

    async def _solve(
        self, task: CellTask, listener: Listener, started: Callable[[Run], None], watching: Watching
    ) -> Run:
        watching.publisher = await self._sandboxes.publisher()
        watching.check(self._shell, task.halts.sure)
        try:
            return await self._solve_watched(task, [listener, watching.listen], started)
        finally:
            await watching.finish()

    async def _solve_watched(
        self, task: CellTask, listeners: list[Listener], started: Callable[[Run], None]
    ) -> Run:
        from llm_sandbox_nb.agent.solve import solve

        return await solve(
            task.task,
            model=task.model,
            isolation=await self._isolation(task),
            sandbox=_Later(lambda: self._sandboxes.acquire(task.sandbox, fresh=task.fresh)),
            inputs=dict(task.inputs),
            files_of=task.files_of,
            output_dir=self._settings.output_dir,
            name=notebook_name(self._shell.user_ns),
            prompt_config=task.prompt_config,
            limits=task.limits,
            settings=task.sampling,
            api_base=task.api_base,
            api_key=task.api_key,
            listeners=listeners,
            on_run=started,
            step=task.halts.step,
            breakpoints=task.halts.breakpoints,
            break_when=task.halts.break_when,
            approve=task.halts.approve,
        )

    async def _isolation(self, task: CellTask) -> str:
        """The isolation asked for; of a sandbox that runs already, the one it has."""
        running = None if task.fresh else await self._sandboxes.current()
        return running.protection.isolation if running else task.sandbox.isolation


class _Later:
    """Something to await that does nothing unless it is awaited."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start

    def __await__(self) -> Generator[Any, None, Sandbox]:
        sandbox: Sandbox = yield from self._start().__await__()
        return sandbox
