"""What can be done with a run's time: go back, go on, fork. Each call also has its plain form, see `home`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llm_sandbox_nb.agent.control import ControlError, RunControl
from llm_sandbox_nb.agent.decision import SKIPPED, edited_call
from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.home import Awaitable, do
from llm_sandbox_nb.agent.place import Place
from llm_sandbox_nb.agent.recorder import Listener, Recorder
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.places import Moment
from llm_sandbox_nb.trajectory.trajectory import Call, Trajectory
from llm_sandbox_nb.trajectory.tree import Branch

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.comparing import Comparison
    from llm_sandbox_nb.agent.replaying import Report
    from llm_sandbox_nb.agent.rewinding import Preview, WentBack, What
    from llm_sandbox_nb.agent.run import Run

T = TypeVar("T")


class RunInTime(Awaitable):
    """The part of `Run` that moves it through time. In a coroutine, `await` what the methods return."""

    folder: Path
    trajectory: Trajectory
    has_journal: bool
    _control: RunControl | None

    place: Place
    """Its sandbox while that is open, and the like."""

    # --- back ---

    def preview(self, step: int, what: What = "both", *, before: Moment | None = None) -> Preview:
        """What `rewind` would change in the files.

        Raises:
            InputError: there is no such step, or its files are not kept.
        """
        from llm_sandbox_nb.agent import rewinding

        there = rewinding.destination(self._run(), step, what, before)
        return self._do(lambda: rewinding.preview(self._run(), there))

    def rewind(self, step: int, what: What = "both", *, before: Moment | None = None) -> WentBack:
        """Go back to the end of `step` (0: before the first) with conversation and files, or one of them.

        A run under way is interrupted and then halts there. What came after stays as a branch; `undo` takes it back.

        Args:
            step: as `run.steps` counts them.
            what: `"both"`, `"files"` or `"conversation"`.
            before: `"call"`: to where the first call of the step is proposed and not carried out, for `edit`.

        Raises:
            InputError: there is no such step, or its files are not kept; nothing was changed.
        """
        from llm_sandbox_nb.agent import rewinding

        self._check_journal()
        there = rewinding.destination(self._run(), step, what, before)
        return self._do(lambda: rewinding.go_back(self._run(), there))

    def undo(self) -> WentBack:
        """Take the newest rewind back, with the files as they were before it; again, the one before that.

        Raises:
            InputError: there is none.
        """
        from llm_sandbox_nb.agent import rewinding

        self._check_journal()
        there = rewinding.last_rewind(self.trajectory)
        return self._do(lambda: rewinding.go_back(self._run(), there))

    # --- on ---

    def resume(
        self,
        text: str | None = None,
        *,
        model: Any = None,
        settings: Any = None,
        limits: Any = None,
        sandbox: Any = None,
        isolation: str | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        listeners: Iterable[Listener] = (),
        control: RunControl | None = None,
        **more: Any,
    ) -> Run:
        """Go on: after a halt, or, when the run is not under way, from where it stands to its end.

        Args:
            text: something to tell the model first; needed when it has submitted.
            model: another model from here on.
            settings, limits: a `ModelSettings` and `RunLimits`, or what shall change of them.
            sandbox: an open sandbox to work in; else the run's own, or a new one with the run's files.
            isolation: for a new sandbox; else as it was.
            api_base, api_key: of the model, where the run was loaded from its folder.
            listeners, control, more: see `solve`.

        Raises:
            InputError: it cannot go on like this; nothing was started.
            RunError: the model, the sandbox or this program failed.
        """
        if self.place.work is not None:
            if any(one is not None for one in (model, settings, limits)):
                self._work_control().change(model=model, settings=settings, limits=limits)
            if text:
                self._work_control().say(text)
            self._work_control().resume()
            return self._run()
        from llm_sandbox_nb.agent.going_on import Wishes, go_on

        def work(listeners: Iterable[Listener] = listeners) -> Coroutine[Any, Any, Run]:
            wishes = Wishes(
                text, model, settings, limits, sandbox, {"isolation": isolation}, api_base, api_key, listeners,
                control, more,
            )  # fmt: skip
            return go_on(self._run(), wishes)

        if self.place.stage is not None:
            self.place.stage(self, work)
            return self._run()
        return self._do(work)

    # --- decisions while it is not under way ---

    def edit(
        self, arguments: Mapping[str, Any] | None = None, *, tool: str | None = None, **changed: Any
    ) -> None:
        """Carry out other arguments in place of those of the next call: all of them, or those named.

        >>> run.edit(command="ls")

        Raises:
            ControlError: no call waits, or the arguments do not fit the tool.
        """
        if self.place.work is not None:
            self._work_control().edit(arguments, tool=tool, **changed)
            return
        call = self._waiting()
        tool, new = edited_call(call.tool, call.arguments, arguments, changed, tool)
        self._decide(call, action="edit", tool=tool, arguments=new)

    def skip(self, observation: str | None = None) -> None:
        """Do not carry out the next call; the model is shown this in place of its result."""
        if self.place.work is not None:
            self._work_control().skip(observation)
            return
        call = self._waiting()
        shown = str(ev.clean_text(observation or "")).strip() or SKIPPED
        self._decide(call, action="skip", tool=call.tool, observation=shown)

    def observe(self, observation: str) -> None:
        """Show the model another observation of the newest call than the one it had. Raises ControlError."""
        if self.place.work is not None:
            self._work_control().observe(observation)
            return
        last = self.trajectory.path[-1].kind if self.trajectory.path else ""
        calls = [call for step in self.trajectory.steps[-1:] for call in step.calls if call.finished]
        if not calls or last in ("model.requested", "model.replied", "run.finished"):
            raise ControlError("The model has seen every observation already: rewind first.")
        shown = str(ev.clean_text(observation))
        self._decide(
            calls[-1], action="observe", tool=calls[-1].tool, observation=shown, original=calls[-1].output
        )

    def _waiting(self) -> Call:
        calls = [call for step in self.trajectory.steps[-1:] for call in step.calls if not call.finished]
        if not calls:
            raise ControlError(
                "No call waits to be carried out: go back to one, as in run.rewind(5, before='call')."
            )
        return calls[0]

    def _decide(self, call: Call, **decided: Any) -> None:
        """Record a decision on a run that is not under way."""
        self._check_journal()
        step = self.trajectory.steps[-1].number
        recorder = Recorder(self.folder, trajectory=self.trajectory)
        try:
            recorder.emit(ev.CallDecided(step=step, call_id=call.id, source="python", **decided))
        finally:
            recorder.close()

    # --- elsewhere ---

    def fork(self, step: int, *, before: Moment | None = None) -> Run:
        """A second run that has all of this one up to `step`, in a folder beside it, with a sandbox of its own.

        Both can go on, also at the same time: `other.resume()`. `other.close()` ends its sandbox.

        Raises:
            InputError: there is no such step, or its files are not kept; nothing was made.
            SandboxError: no second sandbox can be started.
        """
        from llm_sandbox_nb.agent import forking, rewinding

        self._check_journal()
        there = rewinding.destination(self._run(), step, "both", before)
        return self._do(lambda: forking.fork(self._run(), there))

    @property
    def branches(self) -> list[Branch]:
        """The branches that rewinds have made; one of them is the one that goes on."""
        return self.trajectory.branches

    def at(self, branch: Branch | str) -> Run:
        """This run as it was at the end of a branch, or at an event: to be looked at and compared.

        Raises:
            KeyError: there is no such event.
        """
        tip = branch.tip if isinstance(branch, Branch) else branch
        return type(self._run())(self.folder, self.trajectory.at(tip), has_journal=False)

    def compare(self, *others: Run) -> Comparison:
        """This run and others side by side, step by step; without others, its own branches."""
        from llm_sandbox_nb.agent.comparing import compare_runs

        if strange := [one for one in others if not isinstance(one, RunInTime)]:
            raise InputError(
                f"Runs are compared with runs, not with {strange[0]!r:.80}: Run.load(folder) gives one."
            )
        if others:
            return compare_runs([self._run(), *others])
        branches = self.branches
        names = ["now" if one.head else f"left after step {one.step}" for one in branches]
        return compare_runs([self.at(branch) for branch in branches], names)

    def replay(self, ignore: Iterable[str] = (), **options: Any) -> Report:
        """Play the recorded replies against a fresh sandbox; says what comes out otherwise.

        Args:
            ignore: regular expressions of what is expected to differ in observations, such as `r"pid \\d+"`.
            options: `ignore_files`: patterns of paths; `inputs`: files for the input folder, where the
                record has none; `isolation`, `image`, ...: another sandbox than the run had.

        Raises:
            InputError: an expression is wrong, or there is nothing to play.
        """
        from llm_sandbox_nb.agent.replaying import replay

        return self._do(lambda: replay(self._run(), tuple(ignore), **options))

    def rebuild(self, **options: Any) -> Run:
        """Carry all recorded calls out again in a new sandbox: a run with files, which can go on.

        For a conversation from elsewhere, or one whose files were not kept.

        Args:
            options: `inputs`: files for its input folder; `output_dir`; `isolation`, `image`, ...: its sandbox.

        Raises:
            InputError: there is nothing to carry out.
        """
        from llm_sandbox_nb.agent.rebuilding import rebuild

        return self._do(lambda: rebuild(self._run(), **options))

    def close(self) -> Run:
        """End the sandbox of a fork; its files are kept, and it can go on in another. Closing twice is fine."""
        return self._do(self._closed)

    async def _closed(self) -> Run:
        if self.place.owned and self.place.living() is not None:
            await self.place.close()
        return self._run()

    # --- for those who work with it ---

    def fresh_control(self) -> RunControl:
        """A control for going on: the one it has, unless that was used up."""
        return RunControl() if self._control is None or self._control.used else self._control

    def take_control(self, control: RunControl) -> None:
        """The control of what goes on from now."""
        self._control = control

    def _work_control(self) -> RunControl:
        assert self._control is not None
        return self._control

    def _run(self) -> Run:
        return cast("Run", self)

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return do(self.place.loop, work)

    def _check_journal(self) -> None:
        if not self.has_journal:
            raise InputError(
                "This is a view of a record, or a record in the original package's form, and cannot be changed: take "
                "the run itself, or run.rebuild()."
            )
