"""A recorded conversation played again: its replies come from the record, its calls are carried out anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.failures import InputError
from llm_sandbox_nb.agent.folders import new_run_folder
from llm_sandbox_nb.agent.inputs import InputFiles, check_inputs
from llm_sandbox_nb.agent.job import Opening
from llm_sandbox_nb.agent.model import DeltaCallback, ModelSettings, Reply
from llm_sandbox_nb.agent.origin import origin_of
from llm_sandbox_nb.agent.past import decided_call, given_for
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.agent.requests import StopRun
from llm_sandbox_nb.agent.work import Work
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.trajectory import Step, message_text

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


class RecordedModel:
    """Gives the replies of a record, in their order, with its calls as they were executed."""

    def __init__(self, run: Run) -> None:
        self.name = run.model
        self.scripted = bool(run.trajectory.start and run.trajectory.start.scripted)
        self._steps = [step for step in run.steps if step.replied]
        replied = [event for event in run.trajectory.path if isinstance(event, ev.ModelReplied)]
        self._messages = [event.message for event in replied]

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """The reply after so many of the assistant's. Raises StopRun at the end of the record."""
        number = sum(message.get("role") == "assistant" for message in messages)
        if number >= len(self._steps):
            raise StopRun("steps")
        return _reply(self._steps[number], self._messages[number])


def _reply(step: Step, message: dict[str, Any]) -> Reply:
    return Reply(
        message=message,
        text=message_text(message),
        reasoning=step.reasoning or None,
        calls=tuple(decided_call(call) for call in step.calls),
        usage=step.usage,
        finish_reason=step.finish_reason,
    )


async def play(
    run: Run, label: str, inputs: InputFiles, output_dir: str | Path | None, options: Mapping[str, Any]
) -> Run:
    """Carry out the calls of a record in a fresh sandbox; the run that this gives.

    Raises:
        InputError: there is nothing to carry out, or it cannot be started like this.
        RunError: the sandbox or this program failed.
    """
    if not any(step.replied for step in run.steps):
        raise InputError("There is no reply in this record, so there is nothing to carry out.")
    from llm_sandbox_nb.agent.going_on import job_like, sandbox_options
    from llm_sandbox_nb.sandbox.opening import open_sandbox

    checked = check_inputs(inputs)
    given = {
        call.id: text for step in run.steps for call in step.calls if (text := given_for(call)) is not None
    }
    job = job_like(
        run, RecordedModel(run), checked, None if inputs is not None else origin_of(run), given, label
    )
    try:
        opening = open_sandbox(**sandbox_options(run, options))
    except (ValueError, FileNotFoundError, TypeError) as error:
        raise InputError(str(error)) from error
    parent = run.folder.parent if output_dir is None else Path(output_dir)
    recorder = Recorder(new_run_folder(parent, None))
    made = type(run)(recorder.folder, recorder.trajectory)
    made.place.options = sandbox_options(run, options)
    return await Work(job, recorder, made, Opening(opening, True, None), made.fresh_control()).do()
