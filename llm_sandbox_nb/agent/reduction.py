"""Reduction of a conversation: replace each old output by a line, remove old or repeated steps, cut the newest output.

`compaction.py` decides when, how and by how much: a new rule of compaction begins there. A call always stays
together with its results. The task stays complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent.run_limits import Meter, estimated_tokens
from llm_sandbox_nb.trajectory.events import MessageAdded
from llm_sandbox_nb.trajectory.messages import is_one_result, message_text
from llm_sandbox_nb.trajectory.trajectory import Call, Step, Trajectory

KEPT_STEPS = 4
"""Number of newest steps that stay complete if possible."""
_MIN_MASKED_TOKENS = 40
"""Minimum tokens of an output that is replaced. For a smaller output, the replacement would save nothing."""
_MIN_NEWEST_TOKENS = 300
"""Minimum number of tokens that are kept of the newest output."""
_LISTED_CALL_LENGTH = 100
"""Maximum characters of a call in the list of removed calls."""
REMOVED_OUTPUT = "[output of step {step} removed, {tokens:,} tokens: run the command again if you need it]"
REMOVED_STEPS = (
    "[To make room, the steps up to step {step} are removed from this conversation. What they did still holds: files "
    "are as they left them. Run a command again if you need its output.{calls}]"
)
SUMMARY = (
    "[To make room, the steps up to step {step} are removed from this conversation. Your summary:]\n{summary}"
)
SAID = "[Said to you meanwhile:]\n{text}"
_LEFT_OUT = "characters are left out here, because they do not fit"
CUT = "\n\n[... {characters:,} " + _LEFT_OUT + " into what you can take in: print less at once ...]\n\n"


@dataclass(frozen=True)
class Repeated:
    """Equal replies at the end of a conversation."""

    reply: str
    at: int
    """Index of the message before the replies."""
    before: str
    """Text of this message, without the additions for equal replies that were left out."""
    shown: str
    """Text of this message if the replies are left out."""


def find_repeated(
    messages: Sequence[dict[str, Any]], instead: str, left_out: Repeated | None, nudges: Sequence[str] = ()
) -> Repeated | None:
    """Return the equal replies at the end of a conversation. Without equal replies, return None.

    Each of the replies is followed by one result or by one of `nudges`. `instead` is shown instead of the replies,
    before their newest result. A nudge is shown alone. A single reply counts if it equals those in `left_out`, which
    were left out last. Replies are not found if the words of a person, or several results, are between them.
    """

    def is_nudge(message: dict[str, Any]) -> bool:
        # The words of a person come before the nudge, and the number of remaining steps after it.
        return message_text(message).startswith(tuple(nudges))

    at = len(messages) - 1
    reply = message_text(messages[at - 1])
    while (
        at >= 2
        and (is_one_result(messages[at]) or is_nudge(messages[at]))
        and messages[at - 1]["role"] == "assistant"
        and message_text(messages[at - 1]) == reply
    ):
        at -= 2
    before, count = message_text(messages[at]), (len(messages) - 1 - at) // 2
    # A person may have added words to the message after the replies were left out. Then it is another text.
    again = left_out is not None and (left_out.reply, left_out.shown) == (reply, before)
    if count < (1 if again else 2):
        return None
    before = left_out.before if left_out and again else before
    shown = [before, *([] if is_nudge(messages[-1]) else [instead]), message_text(messages[-1])]
    return Repeated(reply, at, before, "\n\n".join(shown))


def step_groups(messages: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return two message indexes for each reply: that of the reply, and that of the next reply or of the end."""
    starts = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return list(zip(starts, [*starts[1:], len(messages)], strict=False))


class Reduction:
    """Planned changes to messages. The messages themselves are not changed."""

    def __init__(self, messages: Sequence[dict[str, Any]], steps: Sequence[Step], meter: Meter) -> None:
        """Prepare the reduction. `steps` are the steps that have a reply."""
        self._messages = messages
        self._groups = step_groups(messages)
        self._steps = steps[len(steps) - len(self._groups) :] if len(self._groups) <= len(steps) else []
        self.shown: dict[int, str] = {}
        """New texts of messages, by message index."""
        self.removed: tuple[int, int] | None = None
        """Range of indexes of removed messages. The range does not include its end."""
        sizes = [message_tokens(messages[at]) for start, end in self._groups for at in range(start, end)]
        new = sum(sizes[self._groups[-1][0] + 1 - self._groups[0][0] :]) if sizes else 0
        counted = sum(sizes) - new
        scale = (meter.counted - meter.beginning) / counted if counted else 1.0
        self._scale = min(4.0, max(0.8, scale, (meter.conversation - meter.beginning) / max(1, sum(sizes))))
        """Number of tokens that the provider counts for each estimated token.

        Outputs have more tokens per byte than prose, so the estimate, which counts bytes, can be too low.
        """
        self.conversation = max(meter.conversation, int(meter.counted + new * self._scale))
        """Tokens of the conversation before the changes."""

    @property
    def saved(self) -> int:
        """Estimated number of tokens that the changes save, as the provider counts tokens."""
        start, end = self.removed or (0, 0)
        saved = sum(message_tokens(self._messages[at]) for at in range(start, end))
        for at, text in self.shown.items():
            if not start <= at < end:
                saved += message_tokens(self._messages[at]) - message_tokens(
                    {**self._messages[at], "content": text}
                )
        return int(saved * self._scale)

    def _left(self) -> int:
        return self.conversation - self.saved

    def mask_and_remove(self, target: float, trajectory: Trajectory, note_tokens: int) -> None:
        """Replace old outputs, oldest first, until at most `target` tokens are left. If needed, remove old steps.

        A note below the task lists calls of the removed steps. This list has at most about `note_tokens` tokens.
        """
        for kept in (KEPT_STEPS, 1):
            old = max(0, min(len(self._groups), len(self._steps)) - kept)
            self._mask(old, target)
            if self._left() > target:
                self._remove(old, target, trajectory, note_tokens)

    def _mask(self, old: int, target: float) -> None:
        left = self._left()
        for group in range(old):
            if left <= target:
                return
            for at, call, text in self._outputs(group):
                if self.removed and self.removed[0] <= at < self.removed[1]:
                    continue
                tokens = int(estimated_tokens(call.output) * self._scale)
                line = REMOVED_OUTPUT.format(step=self._steps[group].number, tokens=tokens)
                self.shown[at] = self._content(at).replace(text, line)
                left -= int((estimated_tokens(text) - estimated_tokens(line)) * self._scale)

    def _remove(self, old: int, target: float, trajectory: Trajectory, note_tokens: int) -> None:
        left, count = self._left() + note_tokens * self._scale, 0
        removed = range(*self.removed) if self.removed else range(0)
        for group in range(old):
            if left <= target:
                break
            for at in range(*self._groups[group]):
                if at not in removed:
                    message = {**self._messages[at], "content": self._content(at)}
                    left -= int(message_tokens(message) * self._scale)
            count = group + 1
        if count:
            step = self._steps[count - 1].number
            calls = _list_of_calls(trajectory.steps, step, note_tokens)
            self._remove_steps(count, REMOVED_STEPS.format(step=step, calls=calls), trajectory)

    def summarize(self, summary: str, count: int, trajectory: Trajectory) -> None:
        """Replace the first `count` steps by the summary."""
        if 0 < count <= len(self._steps):
            text = SUMMARY.format(step=self._steps[count - 1].number, summary=summary)
            self._remove_steps(count, text, trajectory)

    def cut_newest(self, ceiling: float) -> None:
        """Remove the middle of the newest step's outputs, longest first, until at most `ceiling` tokens are left.

        Without this cut, a single large output could end the run.
        """
        if not self._steps:
            return
        outputs = sorted(
            self._outputs(len(self._groups) - 1), key=lambda output: len(output[2]), reverse=True
        )
        for at, call, text in outputs:
            if (excess := self._left() - ceiling) <= 0:
                return
            tokens = estimated_tokens(text)
            kept = (
                max(_MIN_NEWEST_TOKENS, tokens - int(excess / self._scale) - 40) * len(text) // max(1, tokens)
            )
            if kept < len(text):
                cut = CUT.format(characters=len(call.output) - kept)
                short = text[: kept - kept // 2] + cut + text[len(text) - kept // 2 :]
                self.shown[at] = self._content(at).replace(text, short)

    def _remove_steps(self, count: int, note: str, trajectory: Trajectory) -> None:
        start, end = self._groups[0][0], self._groups[count - 1][1]
        self.removed = start, end
        self.shown = {at: text for at, text in self.shown.items() if not start <= at < end}
        task = next((at for at in range(start) if self._messages[at]["role"] == "user"), None)
        said_first = (event.message for event in trajectory.path if isinstance(event, MessageAdded))
        original = next((message for message in said_first if message["role"] == "user"), None)
        if task is None or original is None:
            return
        kept = [self._content(at) for at in range(end, len(self._messages))]
        said = [control.text for control in trajectory.controls if control.action == "say" and control.text]
        said = [text for text in said if not any(text in content for content in kept)]
        notes = [note, *([SAID.format(text="\n\n".join(said))] if said else [])]
        self.shown[task] = "\n\n".join([message_text(original), *notes])

    def leave_out(self, repeated: Repeated) -> None:
        self.removed = repeated.at + 1, len(self._messages)
        self.shown[repeated.at] = repeated.shown

    def _outputs(self, group: int) -> Iterator[tuple[int, Call, str]]:
        """Yield a message index, a call, and the text of its result in the message for each long result in a group."""
        for at in range(self._groups[group][0] + 1, self._groups[group][1]):
            call_id, content = self._messages[at].get("tool_call_id"), self._content(at)
            for call in self._steps[group].calls:
                if not call.finished or call_id not in (None, call.id):
                    continue
                # In text mode, the output is part of a user message.
                text = content if call_id or _LEFT_OUT in content else call.output
                if text in content and estimated_tokens(text) >= _MIN_MASKED_TOKENS:
                    yield at, call, text

    def _content(self, at: int) -> str:
        return self.shown.get(at) or message_text(self._messages[at])


def message_tokens(message: dict[str, Any]) -> int:
    """Estimate the number of tokens in a message."""
    calls = message.get("tool_calls")
    written = json.dumps(calls, ensure_ascii=False) if calls else ""
    return estimated_tokens(message_text(message)) + estimated_tokens(written) + 4


def _list_of_calls(steps: Sequence[Step], last: int, tokens: int) -> str:
    """List the newest calls up to step `last`, one per line. Use at most `tokens` tokens."""
    lines: list[str] = []
    calls = [(step.number, call) for step in steps if step.number <= last for call in step.calls]
    for number, call in reversed(calls):
        values = " ".join(str(value) for value in (call.arguments or {}).values())
        line = f"{number} {call.tool}: {' '.join(values[:1000].split())[:_LISTED_CALL_LENGTH]}"
        tokens -= estimated_tokens(line) + 1
        if tokens < 0:
            break
        lines.append(line)
    return "\n".join([" Their newest calls:", *reversed(lines)]) if lines else ""
