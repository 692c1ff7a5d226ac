"""Sandboxes for TRL's own loop, with a method for the argument `environment_factory` of TRL's `GRPOTrainer`.

TRL asks the model and calls the tools of this package. This package's agent loop executes the calls, so observations,
limits and records are the same as in other runs.

TRL's loop has three restrictions, which `train run` does not have, because it uses TRL's `rollout_func` instead. First,
`submit` does not end a rollout: TRL requests one more reply, whose calls are refused. Second, commands of different
rollouts execute one after another. Third, a reply without a call is not answered with a request for a call.

TRL encodes observations itself, so a zero-width space is put into texts that look like a control token.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS
from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.model.contract import DeltaCallback, ModelSettings, Reply, ToolCall
from llm_sandbox_nb.model.request import assistant_message
from llm_sandbox_nb.model.stream import Assembly
from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
from llm_sandbox_nb.training.rollouts import Rollout, RolloutError, RolloutSetting, RolloutWorkers, in_loop
from llm_sandbox_nb.training.token_model import TokenConversation

OVER = "The run is over: this call was not executed."
LEFT_OUT: Any = None
"""Default value of an optional argument of a call."""
_Method = TypeVar("_Method", bound=Callable[..., str])


def _as_declared(method: _Method) -> _Method:
    """Copy the description of a tool to its method. TRL reads the method to make the tool's schema for the model."""
    tool = TOOLS[method.__name__]
    lines = [tool.description, ""]
    properties = tool.properties(DEFAULT_OPTIONS)
    lines += ["Args:"] if properties else []
    for name, schema in properties.items():
        choices = f" (choices: {json.dumps(schema['enum'])})" if "enum" in schema else ""
        lines.append(f"    {name}: {schema['description']}{choices}")
    method.__doc__ = "\n".join(lines)
    del method.__annotations__["return"]  # TRL would describe the returned value too
    return method


class _AskedModel:
    """Model for the agent loop. Its replies are the calls that TRL makes.

    `asked` receives the messages of each request, and `answers` receives the calls of each reply.
    """

    scripted = False
    cut = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.conversation = TokenConversation()
        self.asked: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()
        self.answers: asyncio.Queue[tuple[ToolCall, ...]] = asyncio.Queue()

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Publish the request, and wait for TRL's calls."""
        self.asked.put_nowait(list(messages))
        calls = await self.answers.get()
        self.conversation.replies.append(())  # only TRL knows the ids
        return Reply(
            assistant_message(Assembly(), calls, "none"),
            calls=calls,
            finish_reason="tool_calls" if calls else "stop",
        )


class SandboxEnvironment:
    """Environment for TRL. Its public methods are the model's tools, except `reset`, which begins a rollout."""

    def __init__(self, environments: SandboxEnvironments) -> None:
        self._environments = environments
        self._model: _AskedModel | None = None
        self._work: asyncio.Task[Rollout] | None = None
        self._numbers = itertools.count(1)

    def reset(self, row: str, **_: Any) -> str:
        """Begin a rollout on a row. Return the task, which TRL appends to the user's message.

        Raises:
            RolloutError: if no sandbox can be opened.
        """
        return in_loop(self._reset(row))

    @_as_declared
    def execute_bash(self, command: str, timeout: float = LEFT_OUT) -> str:
        return self._call("execute_bash", command=command, timeout=timeout)

    @_as_declared
    def str_replace_editor(
        self,
        command: str,
        path: str,
        file_text: str = LEFT_OUT,
        old_str: str = LEFT_OUT,
        new_str: str = LEFT_OUT,
        insert_line: int = LEFT_OUT,
        view_range: list[int] = LEFT_OUT,
    ) -> str:
        return self._call(
            "str_replace_editor",
            command=command,
            path=path,
            file_text=file_text,
            old_str=old_str,
            new_str=new_str,
            insert_line=insert_line,
            view_range=view_range,
        )

    @_as_declared
    def submit(self) -> str:
        return self._call("submit")

    async def _reset(self, row: str) -> str:
        await self._end()
        environments = self._environments
        self._model = _AskedModel(f"policy/{environments.setting.name}")
        folder = environments.folder / f"{next(environments.numbers):06d}"
        self._work = asyncio.create_task(
            environments.workers.attempt(environments.rows[row], self._model, folder)
        )
        messages = await self._next_request()
        if messages is None:
            raise RolloutError((await self._work).detail or "The rollout ended before its first turn.")
        system, _ = environments.setting.task.prompts.messages("")
        if messages[:-1] != [system]:
            equal = " or ".join(name for name, isolation in ISOLATIONS.items() if not isolation.own_root)
            raise RolloutError(
                f"The system prompt names a folder that differs between the sandboxes: use {equal}."
            )
        return environments.setting.chat.harmless(str(messages[-1]["content"]))

    def _call(self, name: str, **arguments: Any) -> str:
        return in_loop(self._answer(name, arguments))

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._model is None or self._work is None or self._work.done():
            return OVER
        given = {key: value for key, value in arguments.items() if value is not LEFT_OUT}
        call = ToolCall(f"call_{next(self._numbers)}", name, json.dumps(given))
        self._model.answers.put_nowait((call,))
        messages = await self._next_request()
        if messages is not None:
            return self._environments.setting.chat.harmless(str(messages[-1]["content"]))
        trajectory = (await self._work).trajectory
        last = list(trajectory.messages())[-1] if trajectory else {}
        return self._environments.setting.chat.harmless(str(last.get("content") or OVER))

    async def _next_request(self) -> list[dict[str, Any]] | None:
        """Return the messages of the loop's next request, or None if the run is over."""
        assert self._model is not None
        assert self._work is not None
        asked = asyncio.create_task(self._model.asked.get())
        await asyncio.wait({asked, self._work}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        return None

    async def _end(self) -> Rollout | None:
        """Return the rollout, or None if none has begun. If the rollout still runs, end it by a reply without calls."""
        if self._work is None or self._model is None:
            return None
        if not self._work.done():
            self._model.answers.put_nowait(())
        return await self._work


class SandboxEnvironments:
    """Environments, rows and reward for TRL's own loop. The end of a `with` block closes the sandboxes.

    With `made` as such an object, make the trainer by `GRPOTrainer(environment_factory=made.environment,
    reward_funcs=[made.reward], train_dataset=Dataset.from_list(made.dataset()), args=grpo_config(config, out))`.
    """

    def __init__(self, setting: RolloutSetting, rows: Sequence[Row], folder: Path, at_once: int) -> None:
        config = dataclasses.replace(setting.config, nudges=0, attempts=1)
        self.setting = dataclasses.replace(setting, config=config)
        self.rows = {row.id: row for row in rows}
        self.folder = folder
        self.workers = RolloutWorkers(self.setting, at_once)
        self.numbers = itertools.count()
        self.environments: list[SandboxEnvironment] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        in_loop(self.workers.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        in_loop(self._close())

    async def _close(self) -> None:
        try:
            for environment in self.environments:
                with contextlib.suppress(RolloutError):
                    await environment._end()
        finally:
            await self.workers.__aexit__()

    def environment(self) -> SandboxEnvironment:
        made = SandboxEnvironment(self)
        self.environments.append(made)
        return made

    def dataset(self) -> list[dict[str, Any]]:
        """Return the rows for TRL: the system message, an empty user message that `reset` fills, and the row's id."""
        system, _ = self.setting.task.prompts.messages("")
        return [
            {"prompt": [system, {"role": "user", "content": ""}], "row": identity} for identity in self.rows
        ]

    def reward(self, environments: Sequence[SandboxEnvironment], **_: Any) -> list[float | None]:
        """End the rollouts and return their rewards; TRL calls this function. A lost rollout has the reward None."""
        return in_loop(self._rewards(environments))

    async def _rewards(self, environments: Sequence[SandboxEnvironment]) -> list[float | None]:
        ended = await asyncio.gather(*(environment._end() for environment in environments))
        scored = await asyncio.gather(
            *(self.workers.rewarded(rollout) for rollout in ended if rollout is not None)
        )
        return [rollout.reward for rollout in scored]
