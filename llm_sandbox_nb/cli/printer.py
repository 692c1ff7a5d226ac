"""A run as plain text on a terminal, event by event. Live and loaded runs look the same."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from llm_sandbox_nb.agent.tools.toolbox import call_view
from llm_sandbox_nb.formatting import (
    format_count,
    format_duration,
    format_short,
    format_size,
    format_spent,
    plural,
)
from llm_sandbox_nb.known_keys import without_keys
from llm_sandbox_nb.plain_text import visible
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.calm_steps import CalmSteps
from llm_sandbox_nb.trajectory.doubts.rules import doubts_line
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.messages import message_text
from llm_sandbox_nb.trajectory.protection import protection_text
from llm_sandbox_nb.trajectory.replay_outcome import replay_finding, replayed_run
from llm_sandbox_nb.trajectory.state import CHECK_LABELS, UNPROTECTED, Status
from llm_sandbox_nb.trajectory.step_line import decided_how, ending
from llm_sandbox_nb.trajectory.trajectory import Trajectory

LIVE_LINES = 20
"""Number of lines of a long text that are printed: as many of its beginning, of its end, and of the end of stderr."""
_MAX_LINE_CHARACTERS = 400

_DECISION_LABELS = {
    "edit": "Edited by you",
    "skip": "Denied by you; the model read your answer",
    "observe": "Result changed by you",
    "nobody": "Nobody could approve it; the model read why",
    "mcp": "Withdrawn by the agent",
}


def harmless(text: str) -> str:
    """Return `text` without API keys. Characters that could control a terminal or reorder a line are made visible."""
    return "".join(
        character if character in "\n\t" else visible(character) for character in without_keys(text)
    )


def protection_lines(protection: dict[str, Any]) -> Iterator[str]:
    """Yield lines that name the isolation, what it protects, and what it does not protect."""
    yield f"Isolation  {protection_text(protection)}"
    for key in ("protects", "does_not_protect"):
        if protection.get(key):
            yield f"           {protection[key]}"


class Printer:
    """Printer of events.

    A run may ask its model while its sandbox still starts. The printer therefore keeps the first steps back, and prints
    them below the line about the isolation.

    `lines` is the maximum number of lines of each text; None means no limit. `folder` is the run's folder, needed only
    to print large outputs of a loaded run in full. `trajectory` is needed if only the current attempt of a loaded run
    is printed: it tells the last step before each rewind. Each item of `calm` holds uneventful steps that share a line.
    `resumed` is the trajectory of a run before its resume, which the printer does not print.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        lines: int | None = LIVE_LINES,
        folder: Path | None = None,
        trajectory: Trajectory | None = None,
        calm: Sequence[CalmSteps] = (),
        resumed: Trajectory | None = None,
    ) -> None:
        self._out = out
        self._lines = lines
        self._folder = folder
        self._trajectory = trajectory
        self._step = 0
        self._live: _Block | None = None
        self._scripted = resumed is not None and resumed.scripted
        self._limits: list[Any] = [{"cost": resumed.budget}] if resumed else []
        self._usage = resumed.usage if resumed else ev.Usage(cost=0.0)
        self._own = ""
        """Token count of the newest reply as text; empty once the count is printed."""
        self._early: list[ev.Event] | None = []
        """Events that arrived before the sandbox was ready; None once it is ready."""
        self._calm = {step.number: row for row in calm for step in row.steps}
        self._status = Status()
        self._said = ""
        """Message of the model's newest failure."""
        self._denied: set[str] = set()
        """Ids of the calls that a person denied. Their results are shown with the decision."""
        self._proposed: dict[str, ev.CallProposed] = {}
        """The calls that have not started, by id."""

    def __call__(self, event: ev.Event) -> None:
        """Show one event.

        Raises:
            OSError: if a large output of a loaded run cannot be read.
        """
        self._status.add(event)
        if isinstance(event, ev.SandboxReady):
            self._show(event)
            self.end()
        elif isinstance(event, ev.RunFinished):
            self.end()
            self._show(event)
        elif self._early is not None and getattr(event, "step", None) is not None:
            self._early.append(event)
        else:
            self._show(event)
        self._write(self._out.flush)

    def end(self) -> None:
        """Print the events that waited until the isolation was known."""
        early, self._early = self._early or (), None
        for event in early:
            self._show(event)

    def _show(self, event: ev.Event) -> None:
        if row := self._calm.get(getattr(event, "step", None) or 0):
            self._show_calm(row, event)
            return
        match event:
            case ev.RunStarted():
                self._scripted, self._limits = event.scripted, [event.settings.get("limits")]
                self._say(f"Task       {_first_line(event.task)}")
                scripted = " (scripted: plays a file, asks no model)" if event.scripted else ""
                self._say(f"Model      {event.model}{scripted}")
                if event.later_version:
                    self._say(f"  note: {event.later_version}")
                if other := replayed_run(event):
                    found = replay_finding(self._folder) if self._folder else ""
                    self._say(": ".join(filter(None, (f"Replay of {other}", found))))
            case ev.SettingsChanged():
                self._limits.append(event.limits)
                if event.model:
                    self._scripted = event.model.startswith("scripted/")
            case ev.SandboxReady():
                for line in protection_lines(event.protection):
                    self._say(line)
            case ev.ModelRequested() | ev.ModelFailed() | ev.ModelReplied():
                self._model(event)
            case ev.ContextKnown():
                self._say(f"  note: {event.model} can take in {format_count(event.tokens)} tokens")
            case ev.ContextReduced(how="repeats"):
                self._say("  note: the model repeats a reply, so this reply is no longer sent to it")
            case ev.ContextReduced():
                self._say(
                    f"  note: the conversation nearly fills the model's {format_count(event.limit)} tokens: from now "
                    f"on {format_count(event.tokens_after)} of its {format_count(event.tokens_before)} tokens are sent"
                )
            case ev.CallProposed():
                self._proposed[event.call_id] = event
            case ev.CallStarted() | ev.CallOutput() | ev.CallFinished():
                self._call(event)
            case ev.DoubtsFound() if not event.final:
                for doubt in event.doubts:
                    self._say(f"  doubt: {doubt.line}")
            case ev.CallDecided() if event.action != "run":
                if event.action == "skip":
                    self._denied.add(event.call_id)
                how = decided_how(event)
                where = f" ({event.source})" if how == event.action else ""
                self._say(f"  {_DECISION_LABELS[how]}{where}")
                self._block((event.observation or "").removesuffix(event.after), "  | ")
            case ev.ArtifactSaved():
                self._say(f"  Copied to the run's folder: {event.path} ({format_size(event.size)})")
            case ev.ArtifactSkipped():
                self._say(f"  left out: {event.reason}")
            case ev.ConnectionMade():
                self._say(f"  network: {event.line}")
            case ev.Noted():
                self._say(f"  note: {event.text}")
            case ev.CheckStarted():
                again = f" {event.number}" if event.number > 1 else ""
                self._say(f"\nCheck{again}: {_first_line(event.what)}")
            case ev.Checked():
                self._checked(event)
            case ev.ArtifactRemoved():
                self._say(f"  removed {event.path}")
            case ev.Rewound():
                self._rewound(event)
            case ev.RunFinished():
                self._finish(event)

    def _show_calm(self, row: CalmSteps, event: ev.Event) -> None:
        """Print one line for several uneventful steps, when the first of their events arrives."""
        if isinstance(event, ev.ModelReplied):
            self._usage = self._usage + (event.usage or ev.Usage())
        if self._step != row.steps[-1].number:
            self._own_figures()
            self._step = row.steps[-1].number
            self._say(f"\nSteps {row.numbers} · {' · '.join(filter(None, (row.words, row.figures)))}")

    def _checked(self, event: ev.Checked) -> None:
        """Print the last lines of the check's output, or all lines if there is no limit, and then the verdict."""
        lines = self._text(event.output).rstrip().split("\n")
        shown = lines if self._lines is None else lines[-self._lines :]
        if len(shown) < len(lines):
            self._say(f"  | ... {plural(len(lines) - len(shown), 'line')} hidden ...")
        self._block("\n".join(shown), "  | ")
        verdict = event.verdict
        took = f", {format_duration(event.duration)}" if event.duration else ""
        self._say(f"  {CHECK_LABELS.get(verdict.outcome, 'Check')}: {verdict.summary}{took}")
        if not verdict.protected:
            self._say(f"  note: {UNPROTECTED}")
        for reason in event.left_out:
            self._say(f"  left out: {reason}")

    def _rewound(self, event: ev.Rewound) -> None:
        """Print the target of a rewind. State that the later steps are kept as an earlier attempt."""
        last = self._step if self._trajectory is None else self._trajectory.step_at(event.id)
        if event.what == "files":
            self._say(f"\nFiles rewound to {_place(event.step)}")
            return
        first, self._step = event.step + 1, event.step
        kept = f"step {first} is" if last == first else f"steps {first} to {last} are" if last > first else ""
        words = "Rewind undone, back at" if event.undo_of else "Rewound to"
        stayed = "; the files stayed as they were" if event.what == "conversation" else ""
        self._say(
            f"\n{words} {_place(event.step)}{f'; {kept} kept as an earlier attempt' if kept else ''}{stayed}"
        )

    def _model(self, event: ev.ModelRequested | ev.ModelFailed | ev.ModelReplied) -> None:
        match event:
            case ev.ModelRequested() if event.step != self._step:
                self._own_figures()
                self._step = event.step
                self._say(f"\n{' · '.join([f'Step {event.step}', *self._budget()])}")
            case ev.ModelFailed():
                self._failed(event)
            case ev.ModelReplied():
                self._usage = self._usage + (event.usage or ev.Usage())
                if event.usage and event.usage.total_tokens:
                    self._own = f"{format_short(event.usage.total_tokens)} tokens"
                self._block(event.reasoning or "", "  . ")
                self._block(message_text(event.message), "  ")

    def _failed(self, event: ev.ModelFailed) -> None:
        """Print a failure after which the model is asked again. Do not print the same message twice.

        A failure that ends the run is printed at the end of the run.
        """
        said, self._said = self._said, event.message
        if event.retry_in is not None:
            what = "failed again" if event.message == said else f"failed: {event.message}"
            self._say(f"  the model {what}; trying again in {format_duration(event.retry_in)}")

    def _own_figures(self) -> None:
        """Print the token count of the newest reply, unless the result line of a call has already shown this count."""
        own, self._own = self._own, ""
        if own:
            self._say(f"  {own}")

    def _budget(self) -> list[str]:
        """Return the cost of the steps so far, if there is a budget."""
        spent = self._spent(self._usage.cost)
        return [spent] if self._usage.total_tokens and " of $" in spent else []

    def _spent(self, cost: float | None) -> str:
        if self._scripted:
            return "scripted: free"
        named = [limit["cost"] for limit in self._limits if isinstance(limit, dict) and "cost" in limit]
        return format_spent(cost, named[-1] if named else None)

    def _call(self, event: ev.CallStarted | ev.CallOutput | ev.CallFinished) -> None:
        match event:
            case ev.CallStarted():
                self._proposed.pop(event.call_id, None)
                self._live = _Block(self._say, "  | ", self._lines)
                self._command(event.tool, event.arguments)
            case ev.CallOutput():
                if self._live:
                    self._live.add(event.text, event.stream)
            case ev.CallFinished():
                self._result(event)

    def _command(self, tool: str, arguments: dict[str, Any]) -> None:
        if command := call_view(tool).command:
            text = str(arguments.get(command, ""))
        else:
            given = {name: value for name, value in arguments.items() if value is not None}
            text = " ".join([tool, *(f"{name}={value}" for name, value in given.items())])
        self._block(text, "  > ")

    def _result(self, event: ev.CallFinished) -> None:
        live, self._live = self._live, None
        proposed = self._proposed.pop(event.call_id, None)
        if event.call_id in self._denied:
            return
        if proposed:  # refused before its start, for example because of its arguments
            if proposed.arguments is None:
                self._block(f"{proposed.tool} {proposed.raw_arguments}", "  > ")
            else:
                self._command(proposed.tool, proposed.arguments)
        if live and live.used:
            live.end()
        else:
            for stream in (event.stdout, event.stderr):
                self._block(self._text(stream), "  | ")
            # The check's result is printed above already.
            if (
                not (event.stdout or event.stderr or event.error == "check_failed")
                and event.exit_code is None
            ):
                self._block(event.body, "  | ")
        took = f", {format_duration(event.duration)}" if event.duration else ""
        own, self._own = self._own, ""
        self._say(f"  {ending(event)}{took}{' · ' if own else ''}{own}")
        for change in event.changes:
            self._say(f"  {change.kind} {change.path} ({format_size(change.size)})")
        if event.notice:
            self._say(f"  note: {event.notice}")

    def _text(self, text: ev.Text) -> str:
        if isinstance(text, str):
            return text
        if self._lines is None and self._folder:
            return load_text(self._folder, text)
        return text.preview

    def _finish(self, event: ev.RunFinished) -> None:
        self._own_figures()
        usage = event.usage
        words = self._status.run_state(live=True).words
        parts = [plural(event.steps, "step")]
        if usage.total_tokens:
            parts.append(f"{plural(usage.total_tokens, 'token')} in all")
        if usage.total_tokens or self._scripted:
            parts.append(self._spent(usage.cost))
        if event.wall_time:
            parts.append(format_duration(event.wall_time))
        self._say(f"\n{words} · {', '.join(parts)}")

    def _block(self, text: str, indent: str) -> None:
        block = _Block(self._say, indent, self._lines)
        block.add(text)
        block.end()

    def _say(self, text: str) -> None:
        self._write(lambda: self._out.write(harmless(text) + "\n"))

    def _write(self, write: Callable[[], object]) -> None:
        """Write to the terminal. If that fails (`| head`, a full disk), the run continues without output."""
        try:
            write()
        except OSError:
            self._out = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)


class _Block:
    """Text that arrives in pieces: the first lines are printed at once, the last lines at the end.

    The last lines of stderr are always printed too.
    """

    def __init__(self, say: Callable[[str], None], indent: str, lines: int | None) -> None:
        self._say = say
        self._indent = indent
        self._lines = lines
        self._count = 0
        self._rest: dict[str, str] = {}
        """Incomplete last line of each stream."""
        self._last: dict[str, deque[tuple[int, str]]] = {}
        """Numbers and texts of the last lines, for all output together and for stderr alone."""
        self.used = False

    def add(self, text: str, stream: str = "stdout") -> None:
        self.used = self.used or bool(text)
        *whole, rest = (self._rest.get(stream, "") + text).split("\n")
        for line in whole:
            self._line(line, stream)
        self._rest[stream] = rest if self._lines is None else rest[: _MAX_LINE_CHARACTERS + 1]

    def end(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._line(rest, stream)
        shown = self._lines or 0
        for number, line in sorted({line for lines in self._last.values() for line in lines}):
            if number > shown + 1:
                self._say(f"{self._indent}... {plural(number - shown - 1, 'line')} hidden ...")
            self._say(self._indent + line)
            shown = number

    def _line(self, line: str, stream: str) -> None:
        self._count += 1
        line = line.rstrip("\r")
        if self._lines is None:
            self._say(self._indent + line)
            return
        line = line if len(line) <= _MAX_LINE_CHARACTERS else line[:_MAX_LINE_CHARACTERS] + " ..."
        if self._count <= self._lines:
            self._say(self._indent + line)
            return
        for name in ("all", stream) if stream == "stderr" else ("all",):
            self._last.setdefault(name, deque(maxlen=self._lines)).append((self._count, line))


def doubts_text(doubts: list[ev.Doubt]) -> str:
    """Return the doubts on one line with a title, to be printed under the answer; empty if there are no doubts."""
    return f"Doubts     {harmless(doubts_line(doubts))}" if doubts else ""


def _place(step: int) -> str:
    return f"step {step}" if step else "the beginning"


def _first_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return first + (" ..." if rest else "")
