"""A run of an outside agent, a program that calls tools of the sandbox over MCP. Each call is a step of the run.

The agent replaces the model: each reply of `OutsideModel` is the agent's next call. So journal, checkpoints, card, and
a person's decisions (pause, approval, rewind) work as in all other runs. Between two calls, other runs and the person
may use the sandbox. Their changes are recorded as changes by others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.control.pause_rules import PauseRules
from llm_sandbox_nb.agent.control.run_control import Move, RunControl, T
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Listener, Recorder, new_run_folder
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_record import (
    IN_USE,
    claim_files,
    in_use_by_another,
    owns_files,
    release_sandbox,
    reserve_sandbox,
)
from llm_sandbox_nb.agent.run_spec import RunSpec, SandboxOpening
from llm_sandbox_nb.agent.session import Session
from llm_sandbox_nb.agent.tools.outside_tools import KeepingTool, outside_toolbox
from llm_sandbox_nb.agent.workspace import Workspace
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.mcp_server.tools import STOPPED
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.runs.rewind import runs_since
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.older import steps_remaining
from llm_sandbox_nb.trajectory.run_folder import HISTORY
from llm_sandbox_nb.trajectory.step_line import OUTSIDE_AGENT
from llm_sandbox_nb.trajectory.trajectory import Call

logger = logging.getLogger(__name__)
Json = dict[str, Any]
MODEL = OUTSIDE_AGENT
TASK = "Calls of an outside agent over MCP"
PROMPT = PromptConfig("An outside agent works in this sandbox: each of its calls is a step.")
_NO_LIMITS = RunLimits(steps=1_000_000, tokens=None)
_MAX_ENDED_CALLS = 200
"""Number of ended calls whose results are stored."""
_MAX_QUEUED_CALLS = 32
_SET_UP_SECONDS = 45.0  # clients of MCP give up after a minute
_OUTPUT_CHARACTERS = 2000
_MAX_CHANGES = 100
_FIRST_MESSAGES = 2
"""Number of messages in the conversation before the first call."""
_TOOL_NAMES = {"run_command": "execute_bash"}
_FAILED = (
    "The work of outside agents in this sandbox has ended with an error, which the notebook shows: ask the person to "
    "execute %sandbox mcp in the notebook again."
)
OTHER_RUN = "A run of the notebook uses this sandbox now: try again when it has ended."
LOST = "The sandbox is lost: ask the person to execute %sandbox mcp in the notebook again."
_NOT_SET_UP = "The sandbox is still being set up: try again in a moment."
REWOUND = (
    "A person has rewound the sandbox during this call: look at the files again, then decide what to do."
)
WITHDRAWN = "The call was withdrawn before it was executed; nothing was done."


class OutsideError(LLMSandboxError):
    """Raised if a call cannot be executed. The message is a sentence for the agent. The call has no effect."""


@dataclass(eq=False)
class OutsideCall:
    """A call from outside, which becomes a step of the run."""

    tool: str
    arguments: Json
    client: str
    principal: str = ""
    """Name of the caller's token. A caller can use the id of the call only with this token."""
    id: str = field(default_factory=lambda: f"cmd-{secrets.token_hex(12)}")
    done: asyncio.Future[Json] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    step: int | None = None

    def finish(self, text: str, data: Mapping[str, Any], *, error: bool) -> None:
        """Set the result of the call. A second result is ignored."""
        if not self.done.done():
            self.done.set_result({"text": text, "data": dict(data), "error": error})

    def refuse(self, text: str) -> None:
        """Refuse to execute the call."""
        self.finish(text, {"error": text}, error=True)


class OutsideModel:
    """Model whose replies are the calls of an outside agent."""

    scripted = False

    def __init__(self, next_call: Callable[[str], Awaitable[OutsideCall]], name: str = MODEL) -> None:
        """Create the model. `next_call` gets the person's messages since the last call, and returns the next call."""
        self.name = name
        self._next_call = next_call

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Wait for the next call, and return the call as a reply; see `Model.reply`."""
        last = messages[-1] if len(messages) > _FIRST_MESSAGES and messages[-1]["role"] == "user" else {}
        text = str(last.get("content", ""))
        call = await self._next_call(text.removesuffix(steps_remaining(text)).strip())
        name = _TOOL_NAMES.get(call.tool, call.tool)
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        made = {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return Reply(
            message={"role": "assistant", "content": None, "tool_calls": [made]},
            calls=(ToolCall(call.id, name, arguments),),
            finish_reason="tool_calls",
            response_model=call.client,
        )


class _OutsideSession(Session):
    """A session that lets others use the sandbox between its steps."""

    agent: OutsideAgent

    async def _set_up(self) -> Workspace:
        workspace = await super()._set_up()
        self.agent.ready.set()
        return workspace

    async def rewind(self, move: Move[T]) -> T:
        """Rewind; see `RunControl.rewind`. Raises InputError if another run uses the sandbox."""
        if not await self.agent.take_sandbox():
            raise InputError(IN_USE)
        return await super().rewind(move)


class OutsideAgent:
    """A run that an outside agent drives. Its methods must be called in the event loop of the run."""

    def __init__(self, run: Run, name: str, *, shared: bool) -> None:
        """Create the agent. `shared` is True if others may use the sandbox too, and False for the sandbox of a fork."""
        self.run = run
        self.name = name
        """Name of the sandbox, which the agent uses in its calls."""
        self.shared = shared
        self.ready = asyncio.Event()
        """`asyncio.Event` that is set when the sandbox is set up, and when the run has ended."""
        self.ended = False
        self.current: OutsideCall | None = None
        self.calls: dict[str, OutsideCall] = {}
        self._queue: deque[OutsideCall] = deque()
        self._news = asyncio.Event()
        self._finished: ev.CallFinished | None = None
        self._person_text = ""
        """Messages of the person that the agent has not read yet."""
        self._changed = asyncio.Event()
        """`asyncio.Event` that is set each time the run records an event."""
        self.task: asyncio.Task[object] | None = None

    @property
    def box(self) -> Sandbox:
        """The sandbox. Raises OutsideError if the run has ended, or if its sandbox is lost or not set up yet."""
        box = self.run.context.living()
        if self.ended:
            raise OutsideError(self._end_reason)
        if box is None:
            raise OutsideError(LOST if self.ready.is_set() else _NOT_SET_UP)
        return box

    @property
    def state(self) -> str:
        """The state of the sandbox in one word."""
        if self.ended:
            return "ended"
        if not self.ready.is_set():
            return "starting"
        return "lost" if self.run.context.living() is None else "ready"

    @property
    def _end_reason(self) -> str:
        return STOPPED if self.run.control.stopped else _FAILED

    def listen(self, event: ev.Event) -> None:
        self._changed.set()
        match event:
            case ev.CallFinished() if self.current is not None and event.call_id == self.current.id:
                self._finished = event
            case ev.Rewound() if self.current is not None:
                self.current.finish(REWOUND, {"error": REWOUND, "status": "rewound"}, error=True)
                self.current = self._finished = None
            case ev.RunFinished():
                self.end()

    def end(self) -> None:
        """Mark the run as ended, and refuse all calls that wait."""
        self.ended = True
        self.ready.set()
        for call in (*filter(None, [self.current]), *self._queue):
            call.refuse(self._end_reason)
        self._queue.clear()
        self._news.set()

    # --- calls ---

    @property
    def busy(self) -> bool:
        """True while a call is executed, or waits for its turn or for a person."""
        return self.current is not None or bool(self._queue)

    def submit(self, tool: str, arguments: Json, client: str, principal: str = "") -> OutsideCall:
        """Queue a call. Raises OutsideError if the run has ended, or too many calls are waiting."""
        if self.ended:
            raise OutsideError(self._end_reason)
        if len(self._queue) >= _MAX_QUEUED_CALLS:
            raise OutsideError(
                "Too many calls wait for their turn: wait for the results of earlier calls first."
            )
        call = OutsideCall(tool, arguments, client, principal)
        self.calls[call.id] = call
        ended = [known for known in self.calls.values() if known.done.done()]
        for old in ended[: max(0, len(self.calls) - _MAX_ENDED_CALLS)]:
            del self.calls[old.id]
        self._queue.append(call)
        self._news.set()
        return call

    async def result(self, call: OutsideCall, wait: float) -> Json:
        """Return the result of a call, or its state after `wait` seconds."""
        await asyncio.wait({call.done}, timeout=wait)
        if call.done.done():
            return call.done.result()
        held = self.run.held
        waits = held is not None and held.call_id == call.id
        so_far = self._output_of(call)
        data = {"status": "waiting" if waits else "running", "command_id": call.id, "output_so_far": so_far}
        if waits:
            text = (
                "The call waits: a person at the notebook looks at it first, and approves, changes or refuses it. "
                f"Do not repeat it: call wait_command with command_id {call.id}."
            )
        else:
            text = f"The call has not ended yet: call wait_command or stop_command with command_id {call.id}."
            text += f"\n[output so far, its end]\n{so_far}" if so_far else ""
        return {"text": text, "data": data, "error": False}

    async def withdraw(self, call: OutsideCall) -> None:
        """End a call. A queued call is removed, a held call is denied, and a running call is interrupted."""
        if call.done.done():
            return
        if call in self._queue:
            self._queue.remove(call)
            call.refuse(WITHDRAWN)
            return
        held = self.run.held
        if held is not None and held.call_id == call.id:
            try:
                self.run.control.deny("The agent has withdrawn this call.", call_id=call.id, source="mcp")
            except ControlError:
                logger.debug("the call %s was decided meanwhile", call.id)
            else:
                call.refuse(WITHDRAWN)
            return
        if call is self.current:
            await self.box.interrupt()

    def _output_of(self, call: OutsideCall) -> str:
        recorded = self._recorded(call)
        return recorded.live_output[-_OUTPUT_CHARACTERS:] if recorded else ""

    def _recorded(self, call: OutsideCall) -> Call | None:
        steps = self.run.trajectory.steps[-3:]
        return next((known for step in steps for known in step.calls if known.id == call.id), None)

    # --- for the model ---

    async def next_call(self, person_text: str) -> OutsideCall:
        """Set the result of the executed call, let others use the sandbox, and wait for the next call.

        `person_text` holds the person's messages since the last call. The agent reads these messages with the result.
        """
        self._person_text = "\n\n".join(filter(None, (self._person_text, person_text)))
        self._answer_current()
        await self.ready.wait()
        await self._leave_sandbox()
        while True:
            while not self._queue:
                self._news.clear()
                await self._news.wait()
            taken = await self.take_sandbox()
            if not self._queue:  # the call was withdrawn meanwhile
                self.leave_unless_busy()
                continue
            call = self._queue.popleft()
            if taken:
                self.current, self._finished = call, None
                return call
            call.refuse(
                "A run of the notebook uses this sandbox now: try again when it has ended, or fork to work at the same "
                "time."
            )

    def _answer_current(self) -> None:
        call, event, self.current = self.current, self._finished, None
        if call is None:
            return
        recorded = self._recorded(call)
        if event is None or recorded is None or recorded.result is None:
            call.refuse("The call was not executed.")
            return
        call.step = event.step
        decisions = {decision.action for decision in recorded.decisions}
        result = recorded.result
        shown = result.body
        facts: Json = {"status": "finished", "checkpoint": str(call.step)}
        if event.error == "skipped":
            text = f"A person at the notebook did not allow this call, and it was not executed: {shown}"
            call.finish(text, {"error": text, "status": "refused"}, error=True)
            return
        notes = []
        if self._person_text:
            facts["person_says"] = self._person_text
            notes.append(f"[The person at the notebook says: {self._person_text}]")
            self._person_text = ""
        tool = self.run.context.spec.toolbox.get(recorded.tool) if self.run.context.spec else None
        outcome = tool.newest(self.box) if isinstance(tool, KeepingTool) else None
        executed = outcome is not None and event.error in (None, "interrupted", "editor")
        if "edit" in decisions:
            facts["changed_by_person"] = recorded.arguments
            arguments = json.dumps(recorded.arguments, ensure_ascii=False)
            notes.append(
                f"[A person at the notebook changed this call; the executed arguments are: {arguments}]"
            )
        if "observe" in decisions:
            facts |= {"output": shown, "output_by_person": True}
            notes.append("[A person at the notebook wrote this result.]")
            call.finish("\n".join([*notes, shown]), facts, error=False)
            return
        if outcome is not None and executed:
            facts = {**outcome.data, **facts}
        changes = [{"path": change.path, "kind": change.kind} for change in result.changes]
        if recorded.tool == "execute_bash" or changes:
            facts["changes"] = changes[:_MAX_CHANGES]
            facts["changes_incomplete"] = result.changes_incomplete or len(changes) > _MAX_CHANGES
            names = ", ".join(f"{change['kind']} {change['path']}" for change in changes[:_MAX_CHANGES])
            more = f" and {len(changes) - _MAX_CHANGES} more" if len(changes) > _MAX_CHANGES else ""
            changed = f"[changed files: {names}{more}]" if changes else "[no file changed]"
            shown = f"{shown}\n{changed}"
        text = "\n".join([*notes, f"{shown}\n[checkpoint {call.step}]"])
        call.finish(text, facts, error=event.error is not None and event.error != "interrupted")

    # --- the sandbox, which others may use too ---

    async def _leave_sandbox(self) -> None:
        """Wait until the files of the last step are stored, then let others use the sandbox."""
        session, box = self.run.context.session, self.run.context.living()
        if not self.shared or session is None or box is None:
            return
        await session.complete_checkpoint()
        release_sandbox(box, self.run.folder)

    @asynccontextmanager
    async def holding_sandbox(self) -> AsyncIterator[Sandbox]:
        """Reserve the sandbox inside the `with` block. Raises OutsideError if another run uses the sandbox."""
        if not await self.take_sandbox():
            raise OutsideError(OTHER_RUN)
        try:
            yield self.box
        finally:
            self.leave_unless_busy()

    async def take_sandbox(self) -> bool:
        """Wait until the sandbox is set up, reserve the sandbox, and record changes by others.

        Return False if another run uses the sandbox.
        """
        try:
            await asyncio.wait_for(self.ready.wait(), _SET_UP_SECONDS)
        except TimeoutError:
            raise OutsideError(_NOT_SET_UP) from None
        box = self.box
        if in_use_by_another(box, self.run.folder):
            return False
        reserve_sandbox(box, self.run.folder)
        if self.current is None and (not owns_files(box, self.run.folder) or (await box.changes()).files):
            await self.record_others()
        return True

    async def record_others(self) -> None:
        """Record changes by others, so that a rewind asks before it undoes these changes."""
        session, box, folder = self.run.context.session, self.box, self.run.folder
        if session is None or self.current is not None:
            return
        await session.complete_checkpoint()
        others = runs_since(self.run, box)
        if not owns_files(box, folder):
            await box.keep_history(folder / HISTORY)
        now, trajectory = await box.checkpoint(), self.run.trajectory
        await box.changes()
        claim_files(box, folder)
        if trajectory.files in (None, now) or trajectory.uncovered is not None:
            return
        last = trajectory.steps_done or None
        session.recorder.emit(ev.Checkpointed(step=last, checkpoint=now, by_others=True, other_runs=others))

    async def settled(self) -> None:
        """Wait until the files of the last step are stored."""
        if self.current is None and self.run.context.session is not None:
            await self.run.context.session.complete_checkpoint()

    def leave_unless_busy(self) -> None:
        """Let others use the sandbox again, unless a call is being executed."""
        box = self.run.context.living()
        if self.shared and self.current is None and box is not None:
            release_sandbox(box, self.run.folder)

    async def resume_after_rewind(self) -> None:
        """Continue at once after a rewind by the agent. A rewind by a person pauses the run instead."""
        self.run.control.resume(source="mcp")
        await asyncio.sleep(0)

    async def next_event(self, wait: float) -> None:
        """Wait for an event of the run, at most `wait` seconds."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), wait)
        except TimeoutError:
            return


async def start_agent(
    sandbox: Sandbox,
    *,
    output_dir: str | Path,
    name: str | None,
    rules: PauseRules,
    listeners: Iterable[Listener] = (),
    on_start: Callable[[OutsideAgent], None] = lambda agent: None,
    at_end: Callable[[], Awaitable[object]] | None = None,
    owned: bool = False,
    task: str = TASK,
) -> OutsideAgent:
    """Begin a run that an outside agent drives, in an open sandbox. The agent's `task` ends with the run.

    Raises:
        InputError: if the folder of the run cannot be made.
        SandboxError: if another run uses the sandbox.
    """
    if in_use_by_another(sandbox, Path()):
        raise SandboxError(IN_USE)
    control = RunControl()
    recorder = Recorder(new_run_folder(Path(output_dir), name), listeners)
    run = Run(recorder.folder, recorder.trajectory, control)
    agent = OutsideAgent(run, "main", shared=not owned)
    recorder.listen(agent.listen)
    spec = RunSpec(
        task=task,
        model=OutsideModel(agent.next_call),
        prompts=PROMPT,
        limits=_NO_LIMITS,
        toolbox=outside_toolbox(),
        pause_rules=rules,
        same_failures=0,
        context="full",
        isolation=sandbox.protection.isolation,
    )
    opening = SandboxOpening(sandbox, owned=owned, root=sandbox.directories.root)
    session = _OutsideSession(spec, recorder, run, opening, control)
    session.agent = agent
    on_start(agent)
    agent.task = asyncio.ensure_future(run_to_end(agent, session.run(), at_end))
    return agent


async def run_to_end(
    agent: OutsideAgent, running: Awaitable[object], at_end: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Await the end of a run, then call `at_end`. Failures of the run are in the record, so they are not raised."""
    try:
        await running
    except Exception as error:  # noqa: BLE001 - recorded, and shown on the card
        logger.debug("the run of an outside agent failed: %s", error)
    finally:
        agent.end()
        if at_end is not None:
            await at_end()
