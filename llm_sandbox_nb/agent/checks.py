"""Checks of a result by a command in a second, fresh sandbox, or by a Python function that gets the run.

The model can neither see nor change a check. The command runs in a fresh sandbox with the programs of the image, the
files of the check, and copies of the model's folders. The exit code and the output of the command decide the verdict.
The isolation `process` does not protect a check from the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import posixpath
import shutil
import tempfile
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
from llm_sandbox_nb.sandbox.history.checkpointing_sandbox import CheckpointingSandbox
from llm_sandbox_nb.sandbox.leftover_folders import TemporaryFolder
from llm_sandbox_nb.trajectory import events as ev
from llm_sandbox_nb.trajectory.journal import load_text
from llm_sandbox_nb.trajectory.run_folder import CHECK_FILES

logger = logging.getLogger(__name__)

CheckFunction = Callable[[Any], Any]
CHECK_TIMEOUT = 600.0
MAX_OUTPUT_BYTES = 256 * 1024
"""Maximum number of bytes of each output stream that are stored."""
CHECK_FOLDER = "/tmp/check"
"""Folder for the files of a check, in the sandbox of the check."""
MAX_COPY_BYTES = 1024**3
"""Maximum size in bytes of the copy of one of the model's folders."""
_COPY_TIMEOUT = 300.0
"""Maximum seconds for copying the model's folders and the files of the check."""
_SHOWN_OUTPUT_LENGTH = 6000
"""Maximum characters of the output that the model reads after a failed check. They are the end of the output."""
_MAX_LEFT_OUT = 20
_MAX_SUMMARY_LENGTH = 160

ENVIRONMENT: Mapping[str, str] = {
    # Without this variable, the model's modules in the current folder would replace modules of the standard library.
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
"""Additional environment variables of a check command."""


@dataclass(frozen=True)
class Check:
    """Check of the result of a run."""

    what: str | CheckFunction
    """A command, or a function that gets the run and returns true, false, a number or a text."""
    files: Inputs = field(default_factory=Inputs)
    """Files that only the check gets. A command runs in the folder of these files, or in the model's working folder if
    there are no files."""
    tries: int = 1
    """Maximum number of checks. After each failed check except the last, the model reads the output and continues."""
    timeout: float = CHECK_TIMEOUT
    """Timeout of a check in seconds."""

    @property
    def name(self) -> str:
        """The command, or the name of the function."""
        if isinstance(self.what, str):
            return self.what
        return str(getattr(self.what, "__name__", None) or type(self.what).__name__)

    def as_json(self) -> dict[str, Any]:
        """Return the check as JSON for the record, with the names but not the content of its files."""
        kind = "command" if isinstance(self.what, str) else "function"
        return {kind: self.name, "files": self.files.names(), "tries": self.tries, "timeout": self.timeout}

    @property
    def key(self) -> str:
        """Text that identifies the check. Checks with equal records have equal keys."""
        return check_key(self.as_json())

    def kept_in(self, folder: Path) -> Check:
        """Return the check with its files copied to the folder of the run, so that a resumed run has them too.

        The files of an earlier check are removed.

        Raises:
            OSError: if the files cannot be copied.
        """
        target = folder / CHECK_FILES
        if not self.files.found or self.files.paths == (target,):
            return self
        # A folder from another person may have links at `target` or below it, so nothing is written through `target`.
        place = Path(tempfile.mkdtemp(prefix=f"{CHECK_FILES}.", dir=folder))
        try:
            made = place / CHECK_FILES
            made.mkdir()
            for path in self.files.paths:
                _copy(path, made if path.is_dir() else made / path.name)
            for name, content in self.files.contents:
                if isinstance(content, Path):
                    _copy(content, made / name)
                else:
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    (made / name).write_bytes(content)
            if os.path.lexists(target):
                target.rename(place / "former")
            made.rename(target)
        finally:
            shutil.rmtree(place, ignore_errors=True)
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
    """Return the check for a caller's options. None if there is no check.

    Raises:
        InputError: if `what` is neither a command nor a function, files are missing, or a number is invalid.
    """
    if what is None or what == "":
        if files is not None and files != [] and files != ():
            raise InputError(
                "check_files are the files of a check: name the command too, as in check='pytest'."
            )
        return None
    if isinstance(what, str):
        if not what.strip() or "\0" in what:
            raise InputError("check is a command, as in check='pytest -q', or a function that gets the run.")
    elif not callable(what):
        raise InputError(f"check is a command or a function that gets the run, not {what!r:.80}.")
    elif files:
        raise InputError("A function needs no check_files: it reads the files of this machine itself.")
    if not isinstance(tries, int) or isinstance(tries, bool) or tries < 1:
        raise InputError(f"check_tries is a whole number of at least one, not {tries!r:.80}.")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise InputError(f"check_timeout is a number of seconds above zero, not {timeout!r:.80}.")
    return Check(what, check_inputs(files), tries, float(timeout))


def check_key(recorded: object) -> str:
    """Return `Check.key` of a recorded check."""
    return json.dumps(recorded, sort_keys=True, default=str)


def recorded_check(recorded: object, folder: Path) -> Check | None:
    """Return the check that a record describes, with the check's files from the run's folder.

    Return None for a check function or an invalid record.
    """
    if not isinstance(recorded, Mapping) or not isinstance(command := recorded.get("command"), str):
        return None
    files = folder / CHECK_FILES
    kept = files if recorded.get("files") and files.is_dir() and not files.is_symlink() else None
    tries, timeout = recorded.get("tries"), recorded.get("timeout")
    with contextlib.suppress(InputError):  # another person may have written the record, so it may be invalid
        return checked_check(command, kept, tries, timeout)  # type: ignore[arg-type] # `checked_check` checks the types
    return None


@dataclass(eq=False)
class ResultCheck:
    """Checker of one run's results. Each check is recorded."""

    check: Check
    recorder: Recorder
    checked_run: Any
    """The run that a check function gets. During the check, `context.answer` of the run has the answer."""
    prompts: PromptConfig

    @property
    def done(self) -> int:
        """Number of checks on the current branch since the run began or was resumed."""
        count = 0
        for event in self.recorder.trajectory.path:
            if isinstance(event, ev.Continued):
                count = 0
            elif isinstance(event, ev.Checked):
                count += 1
        return count

    def may_try_again(self, found: ev.Checked) -> bool:
        """Return True if the model may correct its result. After a check that could not run, return False."""
        return found.verdict.outcome == "failed" and found.number < self.check.tries

    async def run(self, box: Sandbox, answer: str | None) -> ev.Checked:
        """Check the result, and record the check. If the check cannot run, the outcome of the verdict is `error`.

        Raises:
            asyncio.CancelledError: if the run was stopped during the check. The check ends without a verdict.
        """
        number, what = self.done + 1, str(ev.clean_text(self.check.name))
        self.recorder.emit(ev.CheckStarted(number=number, what=what))
        started = time.monotonic()
        found = ev.Checked(number=number, what=what, verdict=ev.Verdict(outcome="error", summary=""))
        try:
            if isinstance(self.check.what, str):
                await self._run_command(found, self.check.what, box, answer or "")
            else:
                await self._run_function(found, self.check.what, answer)
        except (SandboxError, OSError, ValueError, TimeoutError) as error:
            logger.warning("the check of %s could not run", self.recorder.folder, exc_info=True)
            found.verdict.summary = str(error) or type(error).__name__
        summary = first_line(str(ev.clean_text(found.verdict.summary)), _MAX_SUMMARY_LENGTH)
        found.verdict.summary, found.duration = summary, time.monotonic() - started
        found.time = time.time()
        found.verdict.protected = box.protection.isolates
        self.recorder.emit(found)
        return found

    def observation(self, found: ev.Checked) -> str:
        """Return the text that the model reads after a failed check, if the model may try again."""
        output = load_text(self.recorder.folder, found.output).strip()
        if len(output) > _SHOWN_OUTPUT_LENGTH:
            output = f"[...]\n{output[-_SHOWN_OUTPUT_LENGTH:]}"
        count = f"check {found.number} of {self.check.tries}"
        text = (
            f"Not accepted yet: a check of your result failed ({count}): {found.verdict.summary}.\n"
            "Correct the result, then call submit again. The check works on copies of your files."
        )
        return f"{text}\n\n{output}" if output else text

    # --- a command ---

    async def _run_command(self, found: ev.Checked, command: str, box: Sandbox, answer: str) -> None:
        if not isinstance(box, CheckpointingSandbox):
            raise SandboxError("This sandbox cannot start a second sandbox for the check.")
        with TemporaryFolder() as staging:
            clone = await box.clone()
            try:
                async with asyncio.timeout(_COPY_TIMEOUT):
                    left_out = await self._copy_workspace(box, clone, staging)
                    folder = check_folder(clone)
                    left_out += await self.check.files.upload(clone, folder)
                found.left_out = [str(ev.clean_text(sentence)) for sentence in left_out[:_MAX_LEFT_OUT]]
                workspace = self.prompts.under(clone.directories.root).working_dir
                places = {"CHECK": folder, "WORKSPACE": workspace}
                if self.check.files.found:
                    places["PYTHONPATH"] = folder
                result = await clone.exec(
                    ["/bin/bash", "--noprofile", "--norc", "-c", command],
                    stdin=answer.encode("utf-8", "replace"),
                    cwd=folder if self.check.files.found else workspace,
                    env={**ENVIRONMENT, **places},
                    timeout=self.check.timeout,
                    output_limit=MAX_OUTPUT_BYTES,
                )
            finally:
                await asyncio.shield(clone.close())
        await self._take_result(found, command, result)

    async def _copy_workspace(self, box: Sandbox, clone: Sandbox, staging: Path) -> list[str]:
        """Copy the folders that the model works in to the sandbox of the check. Links are not copied.

        Return a message for each file that was left out.
        """
        left_out: list[str] = []
        root, clone_root = box.directories.root, clone.directories.root
        for number, folder in enumerate(_folders(self.prompts.under(root), root)):
            copy = staging / str(number)
            inside = folder == root or folder.startswith(f"{root}/")
            if not inside and root != clone_root:
                continue  # both sandboxes see the same folder of this machine, so it needs no copy
            target = clone_root + folder.removeprefix(root) if inside else folder
            copy.mkdir()
            try:
                left_out += await box.download(folder, copy, limit=MAX_COPY_BYTES, kind="folder")
            except FileNotFoundError:
                left_out.append(f"{folder} is not there any more.")
            left_out += await clone.upload(copy, target)
        return left_out

    async def _take_result(self, found: ev.Checked, command: str, result: CommandResult) -> None:
        found.exit_code, found.timed_out = result.exit_code, result.timed_out
        data = b"\n".join(filter(None, [result.stdout.rstrip(b"\n"), result.stderr]))
        found.output = await self.recorder.store(data)
        if result.timed_out:
            text = f"it took longer than {format_duration(self.check.timeout)}"
            found.verdict = ev.Verdict(outcome="failed", summary=text)
            return
        passed, text = judged(command, data.decode("utf-8", "replace"), result.exit_code)
        found.verdict = ev.Verdict(outcome="passed" if passed else "failed", summary=text)

    # --- a function ---

    async def _run_function(self, found: ev.Checked, function: CheckFunction, answer: str | None) -> None:
        self.checked_run.context.answer = answer
        try:
            async with asyncio.timeout(self.check.timeout):
                value = await in_daemon_thread(function, self.checked_run, name="check")
                if inspect.isawaitable(value):
                    value = await value
        except AssertionError as error:
            text = str(error) or "an assertion failed"
            found.output = text
            found.verdict = ev.Verdict(outcome="failed", summary=f"{self.check.name}: {text}")
        except TimeoutError:
            text = f"{self.check.name} took longer than {format_duration(self.check.timeout)}"
            found.verdict = ev.Verdict(outcome="failed", summary=text)
        except Exception as error:
            raise ValueError(f"{self.check.name} raised {type(error).__name__}: {error}") from error
        else:
            found.verdict, found.score, found.output = verdict_of(self.check.name, value)
        finally:
            self.checked_run.context.answer = None


def verdict_of(name: str, value: Any) -> tuple[ev.Verdict, float | None, str]:
    """Convert the return value of a check function to a verdict, a score and an output.

    A number neither passes nor fails, because only the author of the function knows which numbers are good.

    Raises:
        ValueError: if the value is not true, false, a number or a text.
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
    """Return the folder for the files of a check, in the sandbox of the check."""
    if box.protection.isolates:
        return CHECK_FOLDER
    return posixpath.join(posixpath.dirname(box.directories.root), "check")


def _folders(prompts: PromptConfig, root: str) -> Iterator[str]:
    """Yield the folders that the model works in. A folder inside another one is omitted."""
    folders = (root, prompts.working_dir, prompts.input_dir, prompts.output_dir)
    named = dict.fromkeys(map(posixpath.normpath, folders))
    for folder in named:
        if not any(folder.startswith(f"{other}/") for other in named):
            yield folder
