"""Checks of a result: a command in a second, fresh sandbox, or a Python function of the run.

The model can neither see nor change a check. Its command runs in a sandbox that no program of the model ever ran in,
with the programs of the image, files of its own, and a copy of the model's folders. What it reads there is the
model's; the verdict, its exit code, is not. In the isolation `process` nothing keeps the model's programs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import posixpath
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_sandbox_nb.agent.check_summary import judged
from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import InputFiles, Inputs, check_inputs
from llm_sandbox_nb.agent.prompts import PromptConfig
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.daemon_threads import in_daemon_thread
from llm_sandbox_nb.formatting import format_duration, format_number
from llm_sandbox_nb.plain_text import first_line
from llm_sandbox_nb.sandbox.contract import CommandResult, Sandbox
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.history.sandbox import CheckpointingSandbox
from llm_sandbox_nb.sandbox.isolations import isolates
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.run_folder import CHECK_FILES

logger = logging.getLogger(__name__)

CheckFunction = Callable[[Any], Any]
CHECK_TIMEOUT = 600.0
OUTPUT_KEPT = 256 * 1024
"""Bytes kept of each stream of the command."""
FOLDER_INSIDE = "/tmp/check"
"""Where the files of the check are in its sandbox."""
COPY_LIMIT = 1024**3
"""Bytes of the model's files that a check gets."""
_COPYING = 300.0
"""Seconds for copying them."""
_SHOWN = 6000
"""Characters of the output's end that the model reads after a failed check."""
_LEFT_OUT = 20
_SUMMARY = 160

ENVIRONMENT: Mapping[str, str] = {
    # A module of the model in the current folder is no substitute for one of the library.
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.hooksPath",
    "GIT_CONFIG_VALUE_0": "/dev/null",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "safe.directory",
    "GIT_CONFIG_VALUE_2": "*",
}
"""Variables of a check's command besides those of a fresh sandbox."""


@dataclass(frozen=True)
class Check:
    """How the result of a run is checked."""

    what: str | CheckFunction
    """A command, or a function of the run that returns true or false, a number or a text."""
    files: Inputs = field(default_factory=Inputs)
    """Files that only the check has. A command with files runs in their folder, else in the model's."""
    tries: int = 1
    """How often the result is checked: after a failed check but the last, the model reads its output and continues."""
    timeout: float = CHECK_TIMEOUT
    """Seconds."""

    @property
    def name(self) -> str:
        """The command, or the name of the function."""
        if isinstance(self.what, str):
            return self.what
        return str(getattr(self.what, "__name__", None) or type(self.what).__name__)

    def as_json(self) -> dict[str, Any]:
        """As the record has it. The files themselves are in the run's folder."""
        kind = "command" if isinstance(self.what, str) else "function"
        return {kind: self.name, "files": self.files.names(), "tries": self.tries, "timeout": self.timeout}

    @property
    def key(self) -> str:
        """The same for checks that a record cannot tell apart."""
        return check_key(self.as_json())

    def kept_in(self, folder: Path) -> Check:
        """The same check with a copy of its files in the folder of the run, for a run that resumes later.

        Raises:
            OSError: they cannot be copied.
        """
        target = folder / CHECK_FILES
        if not self.files.found or self.files.paths == (target,):
            return self
        target.mkdir(exist_ok=True)
        for path in self.files.paths:
            _copy(path, target if path.is_dir() else target / path.name)
        for name, content in self.files.contents:
            if isinstance(content, Path):
                _copy(content, target / name)
            else:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(content)
        return replace(self, files=check_inputs(target))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def checked_check(
    what: str | CheckFunction | None, files: InputFiles = None, tries: int = 1, timeout: float = CHECK_TIMEOUT
) -> Check | None:
    """The check that a caller asks for; None without one.

    Raises:
        InputError: it is neither a command nor a function, its files are missing, or a number is invalid.
    """
    if what is None or what == "":
        if files is not None and files != [] and files != ():
            raise InputError(
                "check_files are the files of a check: name the command too, as in check='pytest'."
            )
        return None
    if isinstance(what, str):
        if not what.strip() or "\0" in what:
            raise InputError("check is a command, as in check='pytest -q', or a function of the run.")
    elif not callable(what):
        raise InputError(f"check is a command or a function of the run, not {what!r:.80}.")
    elif files:
        raise InputError("A function needs no check_files: it reads the files of this machine itself.")
    if not isinstance(tries, int) or isinstance(tries, bool) or tries < 1:
        raise InputError(f"check_tries is a whole number of at least one, not {tries!r:.80}.")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise InputError(f"check_timeout is a number of seconds above zero, not {timeout!r:.80}.")
    return Check(what, check_inputs(files), tries, float(timeout))


def check_key(recorded: object) -> str:
    """See `Check.key`."""
    return json.dumps(recorded, sort_keys=True, default=str)


def recorded_check(recorded: object, folder: Path) -> Check | None:
    """The check that a record names, with its files from the folder of the run; a function is not in a record."""
    if not isinstance(recorded, Mapping) or not isinstance(command := recorded.get("command"), str):
        return None
    files = folder / CHECK_FILES
    kept = files if recorded.get("files") and files.is_dir() and not files.is_symlink() else None
    tries, timeout = recorded.get("tries"), recorded.get("timeout")
    with contextlib.suppress(InputError):  # whoever made the record may be anybody
        return checked_check(command, kept, tries, timeout)  # type: ignore[arg-type] # it is checked there
    return None


class ResultCheck:
    """Checks the result of one run and records what it finds."""

    def __init__(self, check: Check, recorder: Recorder, run: Any, prompts: PromptConfig) -> None:
        """`run` is what a function gets; its `context.answer` holds the answer meanwhile."""
        self.check = check
        self._recorder = recorder
        self._run = run
        self._prompts = prompts

    @property
    def done(self) -> int:
        """Checks since the run began or was continued, on the branch of HEAD."""
        count = 0
        for event in self._recorder.trajectory.path:
            if isinstance(event, ev.Continued):
                count = 0
            elif isinstance(event, ev.Checked):
                count += 1
        return count

    def may_try_again(self, found: ev.Checked) -> bool:
        """Whether the model may correct what a check has found; one that could not run is not the model's fault."""
        return found.verdict.outcome == "failed" and found.number < self.check.tries

    async def run(self, box: Sandbox, answer: str | None) -> ev.Checked:
        """Check the result now. Never fails because of the check: a verdict says that it could not run.

        Raises:
            asyncio.CancelledError: the run was stopped meanwhile; the check is ended and there is no verdict.
        """
        number, what = self.done + 1, str(ev.clean_text(self.check.name))
        self._recorder.emit(ev.CheckStarted(number=number, what=what))
        started = time.monotonic()
        found = ev.Checked(number=number, what=what, verdict=ev.Verdict(outcome="error", summary=""))
        try:
            if isinstance(self.check.what, str):
                await self._run_command(found, self.check.what, box, answer or "")
            else:
                await self._run_function(found, self.check.what, answer)
        except (SandboxError, OSError, ValueError, TimeoutError) as error:
            logger.warning("the check of %s could not run", self._recorder.folder, exc_info=True)
            found.verdict.summary = str(error) or type(error).__name__
        summary = first_line(str(ev.clean_text(found.verdict.summary)), _SUMMARY)
        found.verdict.summary, found.duration = summary, time.monotonic() - started
        found.time = time.time()
        found.verdict.protected = isolates(box.protection.isolation)
        self._recorder.emit(found)
        return found

    def observation(self, found: ev.Checked) -> str:
        """What the model reads after a check that failed, when it may try again."""
        output = load_text(self._recorder.folder, found.output).strip()
        output = output if len(output) <= _SHOWN else f"[...]\n{output[-_SHOWN:]}"
        count = f"check {found.number} of {self.check.tries}"
        said = (
            f"Not accepted yet: a check of your result failed ({count}): {found.verdict.summary}.\n"
            "Correct the result, then call submit again. The check works on copies of your files."
        )
        return f"{said}\n\n{output}" if output else said

    # --- a command ---

    async def _run_command(self, found: ev.Checked, command: str, box: Sandbox, answer: str) -> None:
        if not isinstance(box, CheckpointingSandbox):
            raise SandboxError("This sandbox cannot start a second one for the check.")
        with TemporaryFolder() as staging:
            own = await box.clone()
            try:
                async with asyncio.timeout(_COPYING):
                    left_out = await self._copy_workspace(box, own, staging)
                    folder = check_folder(own)
                    left_out += await self.check.files.upload(own, folder)
                found.left_out = [str(ev.clean_text(one)) for one in left_out[:_LEFT_OUT]]
                workspace = self._prompts.under(own.directories.root).working_dir
                places = {"CHECK": folder, "WORKSPACE": workspace}
                if self.check.files.found:
                    places["PYTHONPATH"] = folder
                result = await own.exec(
                    ["/bin/bash", "--noprofile", "--norc", "-c", command],
                    stdin=answer.encode("utf-8", "replace"),
                    cwd=folder if self.check.files.found else workspace,
                    env={**ENVIRONMENT, **places},
                    timeout=self.check.timeout,
                    output_limit=OUTPUT_KEPT,
                )
            finally:
                await asyncio.shield(own.close())
        await self._take_result(found, command, result)

    async def _copy_workspace(self, box: Sandbox, own: Sandbox, staging: Path) -> list[str]:
        """Give the check a copy of the folders that the model works in, without links."""
        left_out: list[str] = []
        root, own_root = box.directories.root, own.directories.root
        for number, folder in enumerate(_folders(self._prompts.under(root), root)):
            copy = staging / str(number)
            inside = folder == root or folder.startswith(f"{root}/")
            if not inside and root != own_root:
                continue  # one machine: the folder is the same
            target = own_root + folder.removeprefix(root) if inside else folder
            copy.mkdir()
            try:
                left_out += await box.download(folder, copy, limit=COPY_LIMIT, kind="folder")
            except FileNotFoundError:
                left_out.append(f"{folder} is not there any more.")
            left_out += await own.upload(copy, target)
        return left_out

    async def _take_result(self, found: ev.Checked, command: str, result: CommandResult) -> None:
        found.exit_code, found.timed_out = result.exit_code, result.timed_out
        data = b"\n".join(filter(None, [result.stdout.rstrip(b"\n"), result.stderr]))
        found.output = await self._recorder.store(data)
        if result.timed_out:
            said = f"it took longer than {format_duration(self.check.timeout)}"
            found.verdict = ev.Verdict(outcome="failed", summary=said)
            return
        passed, said = judged(command, data.decode("utf-8", "replace"), result.exit_code)
        found.verdict = ev.Verdict(outcome="passed" if passed else "failed", summary=said)

    # --- a function ---

    async def _run_function(self, found: ev.Checked, function: CheckFunction, answer: str | None) -> None:
        self._run.context.answer = answer
        try:
            async with asyncio.timeout(self.check.timeout):
                value = await _called(function, self._run)
        except AssertionError as error:
            said = str(error) or "an assertion failed"
            found.output = said
            found.verdict = ev.Verdict(outcome="failed", summary=f"{self.check.name}: {said}")
        except TimeoutError:
            said = f"{self.check.name} took longer than {format_duration(self.check.timeout)}"
            found.verdict = ev.Verdict(outcome="failed", summary=said)
        except Exception as error:
            raise ValueError(f"{self.check.name} raised {type(error).__name__}: {error}") from error
        else:
            found.verdict, found.score, found.output = verdict_of(self.check.name, value)
        finally:
            self._run.context.answer = None


async def _called(function: CheckFunction, run: Any) -> Any:
    value = await in_daemon_thread(function, run, name="check")
    return await value if inspect.isawaitable(value) else value


def verdict_of(name: str, value: Any) -> tuple[ev.Verdict, float | None, str]:
    """The verdict, the number and the text of what a function returned.

    A number is no pass: only the person knows its scale.

    Raises:
        ValueError: it is none of true, false, a number and a text.
    """
    if type(value).__name__ in ("bool", "bool_"):
        return ev.Verdict(outcome="passed" if value else "failed", summary=name), None, ""
    if isinstance(value, str):
        return ev.Verdict(outcome="text", summary=value.strip() or name), None, value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} returned {value!r:.80}: return true or false, a number or a text") from None
    return ev.Verdict(outcome="score", summary=format_number(number)), number, ""


def check_folder(box: Sandbox) -> str:
    """Where the files of a check are in its sandbox."""
    if isolates(box.protection.isolation):
        return FOLDER_INSIDE
    return posixpath.join(posixpath.dirname(box.directories.root), "check")


def _folders(prompts: PromptConfig, root: str) -> Iterator[str]:
    """The folders that the model works in, without those that lie in another one."""
    named = dict.fromkeys(
        posixpath.normpath(one) for one in (root, prompts.working_dir, prompts.input_dir, prompts.output_dir)
    )
    for one in named:
        if not any(one.startswith(f"{other}/") for other in named):
            yield one
