"""Attempt at one problem, in a sandbox or with a single reply. Each attempt is recorded as a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.artifacts import MAX_ANSWER_BYTES
from llm_sandbox_nb.agent.errors import RunError, StopRun
from llm_sandbox_nb.agent.mcp_client.configuration import ServerNames
from llm_sandbox_nb.agent.model_call import call_model
from llm_sandbox_nb.agent.prompts import fill
from llm_sandbox_nb.agent.recorder import Recorder, new_run_folder, public_settings, versions
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_options import Nudges, RunOptions
from llm_sandbox_nb.benchmark.data import with_documents
from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.swe import collect_patch, prepare_repository
from llm_sandbox_nb.benchmark.task import Task, without_network
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.model.contract import (
    ContextOverflowError,
    Model,
    ModelError,
    ModelSettings,
    Reply,
    until_prepared,
)
from llm_sandbox_nb.model.retries import RetryPolicy
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.contract import ResourceUsage, Sandbox
from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError, SandboxError
from llm_sandbox_nb.sandbox.open import OpeningSandbox, resource_usage
from llm_sandbox_nb.trajectory import events as ev

Opener = Callable[[Task, Row], OpeningSandbox]
BoxOpener = Callable[[Task, Row], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True)
class HowToAsk(RunOptions):
    """Model, settings of its requests, and options of its runs."""

    model: Model
    settings: ModelSettings = field(default_factory=ModelSettings)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    limits: RunLimits | None = None
    """Limits that replace the task's limits. With None, the task's limits are used."""
    nudges: Nudges = field(default="all", kw_only=True)
    """Number of successive replies without a tool call to which the run responds by asking for a call. One more such
    reply ends the run. With `all`, as in the paper's package, such replies never end the run."""
    remind: bool = True
    """True to remind the model once if it submits without an answer."""
    reply_tokens: int | None = None
    """Maximum token count of the reply in mode `llm`. With None, the maximum in `settings` is used."""
    save_responses: bool = False
    """True to write each request and reply also as a JSON file, in the subfolder `litellm` of the run's folder."""
    mcp: ServerNames | None = None
    """MCP servers; see `solve`."""
    mcp_allow: tuple[str, ...] = ()
    """MCP servers and tools that may be called. Other calls are refused, because no person can approve them."""


@dataclass(frozen=True)
class Attempt:
    """Outcome of an attempt. `error_kind` is empty if nothing failed. A wrong answer is not a failure."""

    run: Run
    answer: str | None = None
    error_kind: str = ""
    error: str = ""
    spent: ResourceUsage = field(default_factory=ResourceUsage)
    reused: bool = False
    """True if an earlier item had used the same sandbox."""


async def in_sandbox(
    task: Task,
    row: Row,
    how: HowToAsk,
    open_box: BoxOpener,
    folder: Path,
    *,
    documents: str,
    framed: str | None = None,
) -> Attempt:
    """Let the model work on a row in a fresh or reset sandbox.

    Args:
        documents: `files` to give the row's documents as input files, or `prompt` to put them into the prompt.
        framed: text with the problem and its documents, used if `documents` is `prompt`. With None, `with_documents`
            makes this text.

    Raises:
        ModelError, InputError, SandboxError: if the run could not start.
        DataError: if the row's repository or commit does not exist.
    """
    in_files = documents == "files"
    problem = row.problem_statement if in_files else framed or with_documents(row)
    inputs = (
        {name: text.encode("utf-8", "replace") for name, text in row.input_files.items()} if in_files else {}
    )
    async with open_box(task, row) as box:
        prompts = task.prompts if box.protection.network != "none" else without_network(task.prompts)
        base = await prepare_repository(box, row, task.folder) if task.answer == "patch" else ""
        try:
            run = await solve(
                problem,
                model=how.model,
                sandbox=box,
                isolation=box.protection.isolation,
                inputs=inputs,
                output_dir=folder,
                prompt_config=prompts,
                limits=how.limits or task.limits,
                settings=how.settings,
                retries=how.retries,
                remind=how.remind,
                mcp=how.mcp,
                mcp_allow=how.mcp_allow,
                show=False,
                **how.by_name(),
            )
        except RunError as error:
            return Attempt(error.run, None, kind_of(error), str(error))
        try:
            answer = await (collect_patch(box, base) if base else read_answer(box, task))
        except SandboxError as error:
            return Attempt(run, None, "sandbox", str(error))
        in_text = (run.trajectory.tool_calls or how.tool_calls) == "text"
        if answer is None and (task.answer == "reply" or (task.answer == "file" and in_text)):
            answer = run.answer  # with calls as text, a reply may contain the answer instead of a file
        spent = await resource_usage(box)
        if reused := box.renewals > 0:
            spent = replace(spent, memory_peak=None)  # an earlier item may have caused the peak
        return Attempt(run, answer, spent=spent, reused=reused)


def kind_of(error: RunError) -> str:
    """Return the kind of failure that ended a run: the kind of a model error, `sandbox_lost`, `sandbox` or `error`."""
    if error.run.stop_reason == "model_error":
        failures = [event for event in error.run.trajectory.path if isinstance(event, ev.ModelFailed)]
        return failures[-1].error if failures else "unknown"
    if error.run.stop_reason == "sandbox_lost":
        return "sandbox_lost"
    return "sandbox" if isinstance(error.__cause__, SandboxError) else "error"


async def read_answer(box: Sandbox, task: Task) -> str | None:
    """Return the text of the first existing file among the task's `answer_file` and its `prompts.answer_files`.

    Return None if there is no answer file.
    """
    prompts = task.prompts.under(box.directories.root)
    named = [replace(prompts, output_dir=task.answer_file).under(box.directories.root).output_dir]
    for path in [*(named if task.answer_file else ()), *prompts.answer_files]:
        try:
            data = await box.read_file(path, limit=MAX_ANSWER_BYTES)
        except (OSError, OutputLimitExceededError):
            continue
        return text_of(data).strip()
    return None


async def with_one_reply(
    task: Task, row: Row, how: HowToAsk, folder: Path, prompt: str | None = None
) -> Attempt:
    """Ask the model once without tools, with the documents in the prompt. The reply's text is the answer.

    `prompt` replaces the task's prompt.
    """
    if how.reply_tokens is not None:
        how = replace(how, settings=replace(how.settings, max_tokens=how.reply_tokens))
    recorder = Recorder(new_run_folder(folder, None))
    if prompt is None:
        prompt = fill(task.vanilla_prompt, {"problem_statement": with_documents(row)})
    message = {"role": "user", "content": prompt}
    settings = public_settings({"sampling": asdict(how.settings), "mode": "llm"})
    recorder.emit(
        ev.RunStarted(
            run_id=recorder.folder.name,
            task=row.problem_statement,
            model=how.model.name,
            scripted=how.model.scripted,
            settings=settings,
            versions=versions(),
        )
    )
    recorder.emit(ev.MessageAdded(message=message))
    run, started = Run(recorder.folder, recorder.trajectory), time.monotonic()
    ending: ev.StopReason = "interrupted"
    text = error = ""
    kind = ""
    try:
        reply = await _ask(how, message, recorder)
        text = reply.text
        ending = "answered" if text.strip() else "no_answer"
        # A patch is not stripped: its last line may be a blank line of context.
        if task.answer != "patch" or not text.strip():
            text = text.strip()
    except ContextOverflowError as failure:
        ending, error = "tokens", str(failure)
    except ModelError as failure:
        ending, kind, error = "model_error", failure.kind, str(failure)
    finally:
        recorder.emit(
            ev.RunFinished(
                stop_reason=ending,
                answer=text or None,
                error=error or None,
                usage=recorder.trajectory.usage,
                steps=1,
                wall_time=time.monotonic() - started,
            )
        )
        recorder.close()
    return Attempt(run, text or None, kind, error if kind else "")


async def _ask(how: HowToAsk, message: dict[str, Any], recorder: Recorder) -> Reply:
    """Request the reply, and record it. Raise ModelError if the model failed."""
    await until_prepared(how.model)
    started = time.monotonic()
    try:
        reply = await call_model(how.model, [message], [], how.settings, how.retries, recorder, step=1)
    except StopRun as stop:
        raise stop.__cause__ or stop from None
    recorder.emit(
        ev.ModelReplied(
            step=1,
            message=reply.message,
            reasoning=reply.reasoning,
            usage=reply.usage,
            finish_reason=reply.finish_reason,
            model_time=time.monotonic() - started,
            response_id=reply.response_id,
            response_model=reply.response_model,
        )
    )
    return reply
