"""Execution of an outside agent's calls: the effect of each tool on the agent's sandbox, forks and runs.

A call that works in the sandbox is a step of the run; see `outside_agent.py`. Inspecting, rewinding and forking are
not steps, but operations on the run, which a person can execute too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from llm_sandbox_nb.agent.control.run_control import RunControl
from llm_sandbox_nb.agent.errors import ControlError, InputError
from llm_sandbox_nb.agent.recorder import Listener
from llm_sandbox_nb.agent.tools.text_file import file_diffs
from llm_sandbox_nb.formatting import plural, shorten
from llm_sandbox_nb.runs.checkpoint_files import CheckpointFiles
from llm_sandbox_nb.runs.end_files import printable
from llm_sandbox_nb.runs.fork import fork
from llm_sandbox_nb.runs.outside_agent import (
    LOST,
    MODEL,
    OutsideAgent,
    OutsideCall,
    OutsideError,
    OutsideModel,
    run_to_end,
)
from llm_sandbox_nb.runs.resume import ResumeOptions, resume
from llm_sandbox_nb.runs.rewind import Destination, find_destination, last_rewind, rewind, undone_changes
from llm_sandbox_nb.runs.rewind_points import files_after
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.started_runs import RunRequest, StartedRun, StartedRuns, Starter
from llm_sandbox_nb.sandbox.contract import Changes
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError
from llm_sandbox_nb.trajectory.events import clean_text

Json = dict[str, Any]
Listeners = Callable[[Run], tuple[Sequence[Listener], Callable[[], Awaitable[object]]]]
"""Function that takes a fork and returns a pair: listeners for the events of the fork, and an async function that is
called when the fork has ended."""
_STEPS = {
    "run_command": ("command", "timeout"),
    "read_file": ("path", "offset", "limit"),
    "write_file": ("path", "content"),
    "edit_file": ("path", "old_string", "new_string", "replace_all"),
    "list_files": ("path", "depth", "max_entries"),
    "create_checkpoint": ("label",),
}
"""Tools whose calls are steps, with the names of the arguments that are recorded."""
_DIFF_CHARACTERS = 20_000
_ANSWER_CHARACTERS = 20_000
_MAX_LISTED_STEPS = 100
_MAX_NAMES = 12
_MAX_FORKS = 4
_WAIT_SECONDS = 45.0  # MCP clients give up after a minute
_STOP_SECONDS = 5.0
"""Seconds to wait for the result of a stopped call."""


@dataclass(frozen=True)
class OutsideCaller:
    """The caller of a tool."""

    client: str
    """Name that the client claims."""
    agreed: str
    """Key (`about`) of the question that the person has answered with yes. Empty if there is no such question."""
    principal: str
    """Name of the caller's token."""


class OutsideCalls:
    """Dispatcher of an outside agent's calls to one sandbox. `call` must be called in the event loop of the run."""

    def __init__(
        self, agent: OutsideAgent, follow_fork: Listeners | None = None, starter: Starter | None = None
    ) -> None:
        """Create the dispatcher. `starter` executes the runs of `start_run`. None means that no run can be started."""
        self.agents = {agent.name: agent}
        """The agents of the main sandbox and of its forks, by the names of these sandboxes."""
        self._main = agent
        self._follow_fork = follow_fork
        self._started = StartedRuns(starter)
        self._forking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(
        self, tool: str, arguments: Json, client: str, agreed: str = "", principal: str = ""
    ) -> Json:
        """Execute a call. Return a mapping with `text`, `data` and `error`.

        If a person must agree first, return a mapping with `ask`, the question, and `about`, a text that identifies the
        question. If the person answers yes, the caller repeats the call with this text as `agreed`.

        `principal` is the name of the caller's token. The caller cannot use ids of calls and runs that belong to other
        tokens. If this coroutine is cancelled, the running command is ended.
        """
        caller = OutsideCaller(client, agreed, principal)
        try:
            agent = self._agent(arguments.get("sandbox"))
            if tool in _STEPS:
                return await self._step(agent, tool, arguments, caller)
            work = getattr(self, f"_{tool}", None)
            if work is None:
                raise OutsideError(f"There is no tool {tool}.")
            found: Json = await work(agent, arguments, caller)
            return found
        except (OutsideError, InputError, ControlError, SandboxError, OSError) as error:
            text = str(clean_text(str(error))) or type(error).__name__
            if isinstance(error, SandboxLostError):
                text = f"{LOST} ({text})"
            return {"text": text, "data": {"error": text}, "error": True}

    @property
    def ended(self) -> bool:
        """True if the run of the main sandbox has ended."""
        return self._main.ended

    async def close(self, source: str = "mcp") -> None:
        """End all runs, and close the forks with their sandboxes. `source` is the recorded source of the decision."""
        async with self._forking:
            for agent in self.agents.values():
                if not agent.ended and agent.task is not None:
                    with suppress(ControlError):  # the run ends already
                        agent.run.control.stop(source=source)
            await self._started.close(source)
            tasks = [agent.task for agent in self.agents.values() if agent.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            for agent in self.agents.values():
                if agent is not self._main:
                    await agent.run.context.close()

    def _agent(self, name: object) -> OutsideAgent:
        if name in (None, ""):
            return self._main
        found = self.agents.get(str(name))
        if found is None:
            raise OutsideError(f"This agent has no sandbox {name!r:.80}: it has {', '.join(self.agents)}.")
        return found

    # --- steps ---

    async def _step(self, agent: OutsideAgent, tool: str, arguments: Json, caller: OutsideCaller) -> Json:
        known = {name: arguments[name] for name in _STEPS[tool] if name in arguments}
        call = agent.submit(tool, known, caller.client, caller.principal)
        try:
            return await agent.result(call, arguments.get("wait", _WAIT_SECONDS))
        except asyncio.CancelledError:
            task = asyncio.ensure_future(agent.withdraw(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            raise

    async def _wait_command(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        agent, call = self._known_call(arguments["command_id"], caller)
        return await agent.result(call, arguments.get("wait", _WAIT_SECONDS))

    async def _stop_command(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        agent, call = self._known_call(arguments["command_id"], caller)
        await agent.withdraw(call)
        return await agent.result(call, _STOP_SECONDS)

    def _known_call(self, id: str, caller: OutsideCaller) -> tuple[OutsideAgent, OutsideCall]:
        for agent in self.agents.values():
            call = agent.calls.get(id)
            if call is not None and call.principal == caller.principal:
                return agent, call
        raise OutsideError(
            "There is no such command_id here: results of ended commands are kept only for a while."
        )

    # --- inspection ---

    async def _list_sandboxes(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        found: list[Json] = []
        for known in self.agents.values():
            box = known.run.context.living()
            found.append(
                {
                    "sandbox": known.name,
                    "state": known.state,
                    "steps": known.run.trajectory.steps_done,
                    "working_directory": box.directories.root if box else None,
                    "isolation": box.protection.isolation if box else None,
                    "network": box.protection.network if box else None,
                }
            )
        rows = [
            f"{box['sandbox']}: {box['state']}, {plural(box['steps'], 'step')}, works in {box['working_directory']}, "
            f"isolation {box['isolation']}, network {box['network']}"
            for box in found
        ]
        return _result("\n".join(rows), {"sandboxes": found})

    async def _list_checkpoints(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        trajectory, before = agent.run.trajectory, arguments.get("before") or None
        found: list[Json] = []
        for step in reversed(trajectory.steps):
            if not step.calls or (before and step.number >= before):
                continue
            call = step.calls[0]
            if call.result is None:
                continue
            label = (call.arguments or {}).get("label") if call.tool == "create_checkpoint" else None
            found.append(
                {
                    "step": step.number,
                    "label": label,
                    "tool": call.tool,
                    "what": _shown(call.arguments),
                    "exit_code": call.result.exit_code,
                    "changed": [change.path for change in call.result.changes][:_MAX_NAMES],
                    "time": step.checkpoint.time if step.checkpoint else None,
                }
            )
        most = max(1, arguments.get("limit", 20))
        rows = [f"{step['step']}: {step['tool']} {step['what']}".rstrip() for step in found[:most]]
        left = len(found) - most
        more = (
            f"\n[{left} more: call list_checkpoints with before={found[most - 1]['step']}]"
            if left > 0
            else ""
        )
        text = ("\n".join(rows) or "No step yet.") + more + "\n0: the beginning"
        return _result(text, {"checkpoints": found[:most], "truncated": len(found) > most})

    async def _show_changes(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        run = agent.run
        async with agent.holding_sandbox() as box:
            await agent.settled()
            first = self._checkpoint(run, arguments["from"])
            later = arguments.get("to", "now")
            second = None if later == "now" else self._checkpoint(run, later)
            found = await box.changes(first, second)
        path = str(arguments.get("path") or "/")
        inside = posixpath.normpath(posixpath.join(box.directories.root, path)).rstrip("/")
        files = tuple(
            file for file in found.files if file.path == inside or file.path.startswith(f"{inside}/")
        )
        diffs, left_out = await file_diffs(Changes(files, found.incomplete))
        rows, room, listed = list[str](), _DIFF_CHARACTERS, list[Json]()
        for diff in diffs:
            head = f"{diff.kind} {diff.path}{f' ({diff.note})' if diff.note else ''}"
            body = diff.diff or ""
            cut = len(body) > max(0, room)
            shown = "" if cut else body
            note = "\n[diff left out: name this path to see it]" if cut else ""
            rows.append(f"{head}{note}\n{shown}".rstrip("\n"))
            room -= len(rows[-1])
            listed.append(
                {"path": diff.path, "kind": diff.kind, "diff": shown or None, "note": diff.note or None}
            )
            if room < 0:
                break
        left = len(files) - len(listed)
        more = [f"[{left} more files: name a path to see them]"] if left else []
        text = "\n".join([*rows, *more, *([left_out] if left_out else [])]) or "No file differs."
        return _result(text, {"files": listed, "truncated": left > 0, "incomplete": left_out})

    # --- runs ---

    async def _start_run(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        request = RunRequest(
            arguments["task"], arguments.get("model") or None, max(1, arguments["max_steps"])
        )
        started = await self._started.start(agent, request, caller.principal)
        text = (
            f"The run {started.id} has begun, with at most {plural(request.max_steps, 'step')} of {started.run.model}. "
            f"The person sees it in the notebook. Call get_run with run_id {started.id}; until its end your calls in "
            "this sandbox are refused."
        )
        data = {"run_id": started.id, "status": "running", "model": started.run.model}
        return _result(text, data)

    async def _stop_run(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        started = self._started.find(arguments["run_id"], caller.principal)
        await self._started.stop(started, _STOP_SECONDS)
        return _described_run(started.id, started.run, 0, ended=started.ended)

    async def _get_run(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        since, wait = arguments.get("since", 0), arguments.get("wait")
        followed: OutsideAgent | StartedRun = agent
        id = agent.run.folder.name
        if asked := arguments.get("run_id"):
            named = (agent for agent in self.agents.values() if asked in (agent.run.folder.name, agent.name))
            followed = next(named, None) or self._started.find(asked, caller.principal)
            id = asked if isinstance(followed, StartedRun) else followed.run.folder.name
        if wait and not followed.ended and followed.run.trajectory.steps_done <= since:
            await followed.next_event(wait)
        return _described_run(id, followed.run, since, ended=followed.ended)

    # --- rewind and fork ---

    async def _rewind(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        run = agent.run
        async with agent.holding_sandbox() as box:
            await agent.record_others()
            destination = self._destination(run, arguments["to"])
            if destination.target is None:
                raise OutsideError(
                    f"The files of {arguments['to']} are not kept: list_checkpoints shows other steps."
                )
            others = await undone_changes(run, box, destination.target)
            about = hashlib.sha256(json.dumps([destination.to, others.paths]).encode()).hexdigest()
            if others.paths and caller.agreed != about:
                names = ", ".join(others.paths[:_MAX_NAMES])
                more = f" and {len(others.paths) - _MAX_NAMES} more" if len(others.paths) > _MAX_NAMES else ""
                question = f"This rewind would also undo later changes {others.by}: {names}{more}."
                return {"ask": str(clean_text(question)), "about": about}
            went = await rewind(run, replace(destination, others=True))
            step = run.trajectory.steps_done  # an undo leads into the step that waited for its call
            await agent.resume_after_rewind()
        place = f"after step {step}" if step else "at the beginning"
        files = plural(went.files, "path was", "paths were")
        text = (
            f"The files and the shell are again as {place}: {files} put back. Later steps are kept as an earlier "
            "attempt. To undo this, call rewind with to=undo."
        )
        if went.others:
            text += f" This undid later changes {others.by}: {', '.join(went.others[:_MAX_NAMES])}."
        text = "\n".join([text, *went.problems])
        data = {
            "step": step,
            "files": went.files,
            "problems": list(went.problems),
            "undid_of_others": list(went.others),
            "undo": "undo",
        }
        return _result(text, data)

    async def _fork(self, agent: OutsideAgent, arguments: Json, caller: OutsideCaller) -> Json:
        async with self._forking:  # an agent may ask for several forks at once
            open_forks = [
                agent for agent in self.agents.values() if agent is not self._main and not agent.ended
            ]
            if len(open_forks) >= _MAX_FORKS:
                raise OutsideError(
                    f"There are {_MAX_FORKS} forks already: use one of them, or ask the person to end one."
                )
            run = agent.run
            name = _fork_name(arguments.get("label"), self.agents)
            async with agent.holding_sandbox():
                await agent.record_others()
                await agent.settled()
                destination = self._destination(run, arguments.get("from", "now"))
                if destination.target is None:
                    raise OutsideError(
                        "The files of this step are not kept: list_checkpoints shows other steps."
                    )
                other = await fork(run, destination)
            forked = OutsideAgent(other, name, shared=False)
            forked.ready.set()
            listeners, finish = self._follow_fork(other) if self._follow_fork else ((), _nothing)
            control = RunControl()
            other.take_control(control)  # the run may be stopped before it resumes
            options = ResumeOptions(
                model=OutsideModel(forked.next_call, f"{MODEL}, {name}"),
                listeners=(*listeners, forked.listen),
                control=control,
            )
            forked.task = asyncio.ensure_future(run_to_end(forked, resume(other, options), finish))
            self.agents[name] = forked
        root = forked.box.directories.root
        place = f"after step {destination.step}" if destination.step else "of the beginning"
        text = (
            f"The fork {name} has the files and the shell {place}, and works in {root}. "
            f'Give "sandbox": "{name}" in later calls to work there.'
        )
        data = {
            "sandbox": name,
            "step": destination.step,
            "run_id": other.folder.name,
            "working_directory": root,
        }
        return _result(text, data)

    def _destination(self, run: Run, to: str) -> Destination:
        """Return the rewind destination that `to` names: a step, a label, `now` or `undo`.

        Raises:
            InputError: if there is no such step, its files are not stored, or there is no rewind to undo.
            OutsideError: if no checkpoint has this name.
        """
        to = to.strip()
        if to == "undo":
            return last_rewind(run.trajectory)
        if to == "now":
            last = find_destination(run, run.trajectory.steps_done)
            return replace(last, target=run.trajectory.files or last.target)
        number = to.removeprefix("step").removeprefix("checkpoint").strip()
        if number.isdecimal() and len(number) < 10:
            return find_destination(run, int(number))
        for attempt in (run, *(run.at(attempt) for attempt in reversed(run.attempts))):
            for step in reversed(attempt.steps):
                labels = [
                    (call.arguments or {}).get("label", "").strip()
                    for call in step.calls
                    if call.tool == "create_checkpoint" and call.result is not None and not call.result.error
                ]
                if to in labels:
                    return find_destination(attempt, step.number)
        raise OutsideError(
            "There is no such checkpoint: give the number of a step, a label, or `undo`; list_checkpoints shows them."
        )

    def _checkpoint(self, run: Run, point: str) -> str:
        destination = self._destination(run, point)
        target = destination.target or files_after(run.trajectory, destination.step)
        if target is None or not CheckpointFiles(run).has(target):
            raise OutsideError("The files of this step are not kept: list_checkpoints shows other steps.")
        return target


async def _nothing() -> None:
    return


def _result(text: str, data: Json) -> Json:
    return {"text": text, "data": data, "error": False}


def _described_run(id: str, run: Run, since: int, *, ended: bool) -> Json:
    """Describe a run for the agent: its state, its answer, and its steps after step `since`."""
    trajectory = run.trajectory
    state = trajectory.state(live=not ended)
    steps: list[Json] = [
        {
            "step": step.number,
            "calls": [
                {
                    "tool": call.tool,
                    "what": _shown(call.arguments),
                    "exit_code": call.result.exit_code if call.result else None,
                    "error": call.result.error if call.result else None,
                    "finished": call.result is not None,
                }
                for call in step.calls
            ],
        }
        for step in trajectory.steps
        if step.number > since and step.calls
    ][-_MAX_LISTED_STEPS:]
    rows = [f"{step['step']}: {call['tool']} {call['what']}" for step in steps for call in step["calls"]]
    data = {"run_id": id, "state": state.words, "ended": ended, "steps": steps}
    if ended and run.answer:
        data["answer"] = run.answer[:_ANSWER_CHARACTERS]
        rows.append(f"[answer]\n{data['answer']}")
    return _result("\n".join([f"Run {id}: {state.words}", *rows]), data)


def _shown(arguments: Any) -> str:
    """Return the main argument of a call on one line."""
    if not isinstance(arguments, dict):
        return ""
    first = next((str(arguments[name]) for name in ("command", "path", "label") if name in arguments), "")
    return shorten(" ".join(printable(first).split()), 120)


def _fork_name(label: object, taken: Sequence[str] | dict[str, Any]) -> str:
    """Make an unused name for a fork from a label."""
    text = "".join(
        character if character.isascii() and (character.isalnum() or character in "-_") else "-"
        for character in str(label or "")
    )
    base = text.strip("-")[:40] or "fork"
    number, name = 1, base if label and base != "main" else f"{base}-1"
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name
