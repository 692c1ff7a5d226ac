"""The subcommands of `%sandbox` that show, use, replace and end the notebook's sandbox."""

from __future__ import annotations

import codecs
import posixpath
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from llm_sandbox_nb.formatting import format_duration, format_size
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.event_loop import CLEAN_UP_SECONDS, BackgroundLoop, BackgroundTask
from llm_sandbox_nb.notebook.magic_line import split_words
from llm_sandbox_nb.notebook.sandboxes import Forks, NotebookSandboxes, SandboxStatus
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.sandbox.contract import FileEntry, Sandbox, StreamName, TransferKind
from llm_sandbox_nb.sandbox.options import SandboxOptions
from llm_sandbox_nb.sandbox.transfer import NAME_TAKEN
from llm_sandbox_nb.trajectory.protection import protection_text

T = TypeVar("T")

NO_SANDBOX = "No sandbox is running: a %%sandbox cell, %sandbox sh or %sandbox put starts one."

NO_IDLE = "No other notebook of this Jupyter server has an idle sandbox."


@dataclass(eq=False)
class SandboxCommands:
    """Subcommands for the sandbox. Each method is a subcommand and prints the result."""

    background: BackgroundLoop
    sandboxes: NotebookSandboxes
    options: Callable[[], SandboxOptions]
    forks: Forks

    def status(self, rest: str) -> None:
        """Print the running sandbox, who keeps it (server or kernel), how it is isolated, and the open forks."""
        split_words("status", rest, 0, 0)
        print(status_text(self.background.run(self.sandboxes.status())))
        if forks := self.forks.status_text():
            print(plain(forks))

    def files(self, rest: str) -> None:
        """List the output folder of the sandbox, or the named folder."""
        words = split_words("files [FOLDER]", rest, 0, 1)
        sandbox = self._running()
        folder = words[0] if words else sandbox.directories.output
        try:
            entries = self.background.run(sandbox.list_files(folder, depth=8, limit=1_000))
        except OSError as error:
            raise SandboxInputError(f"{folder} cannot be listed in the sandbox: {_reason(error)}.") from error
        print(listing(entries, folder))

    def get(self, rest: str) -> None:
        """Copy a file or folder of the sandbox to the working directory, or to the folder in the second word.

        Files with the same names stay as they are; `--replace` replaces them.
        """
        words = split_words("get PATH [FOLDER] [--replace]", rest, 1, 3)
        replace = "--replace" in words
        words = [word for word in words if word != "--replace"]
        if len(words) not in (1, 2):
            raise SandboxUsageError("The command is %sandbox get PATH [FOLDER] [--replace].")
        target = expanded(words[1] if len(words) > 1 else ".")
        sandbox = self._running()
        source = posixpath.join(sandbox.directories.root, words[0])
        kind: TransferKind = "folder" if self._is_folder(sandbox, source) else "file"
        if kind == "folder":
            target = target / posixpath.basename(posixpath.normpath(source))
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxInputError(f"The folder {target} cannot be made here: {_reason(error)}.") from error
        try:
            left_out = self.background.run(sandbox.download(source, target, kind=kind, replace=replace))
        except OSError as error:
            raise SandboxInputError(
                f"{words[0]} cannot be copied from the sandbox: {_reason(error)}."
            ) from error
        for reason in left_out:
            print(plain(reason))
        if any(NAME_TAKEN in reason for reason in left_out):
            print(f"To replace files: %sandbox get {rest.strip()} --replace")
        if kind == "folder" or not left_out:
            print(f"Copied {words[0]} to {target}{', except for the files above' if left_out else ''}.")

    def put(self, rest: str) -> None:
        """Copy files and folders of this machine into the sandbox's input folder."""
        words = split_words("put PATH...", rest, 1, 1_000)
        paths = [expanded(word) for word in words]
        for path in paths:
            if not path.exists():
                raise SandboxInputError(f"The file or folder {path} does not exist: check the path.")
        sandbox = self._sandbox()
        for path in paths:
            folder = sandbox.directories.input
            place = posixpath.join(folder, path.resolve().name if path.is_dir() else path.name)
            target = place if path.is_dir() else folder
            for left_out in self.background.run(sandbox.upload(path, target)):
                print(plain(left_out))
            print(f"Copied {path} to {place}.")

    def sh(self, rest: str) -> None:
        """Run a command in the sandbox's shell, which the model uses too."""
        if not rest.strip():
            raise SandboxUsageError("%sandbox sh needs a command, e.g. %sandbox sh ls output.")
        sandbox = self._sandbox()
        printer = _Printer()
        job = BackgroundTask(self.background, sandbox.run(rest, timeout=None, on_output=printer.add))
        try:
            while not job.wait(0.05):
                printer.print()
        except KeyboardInterrupt:
            job.cancel()
            job.wait(CLEAN_UP_SECONDS)
            raise
        finally:
            printer.print()
        result = job.result()
        if result.notice:
            print(plain(result.notice))
        if result.exit_code != 0:
            print(f"exit code {result.exit_code}")

    def reset(self, rest: str) -> None:
        """Replace the sandbox with a new, empty one."""
        split_words("reset", rest, 0, 0)
        self.background.run(self.sandboxes.acquire(self.options(), fresh=True))
        print(status_text(self.background.run(self.sandboxes.status())))

    def fresh(self, rest: str) -> None:
        """End the sandbox, if there is one, so that the next cell starts a new sandbox."""
        split_words("fresh", rest, 0, 0)
        self.background.run(self.sandboxes.stop())
        print("The next cell begins in a new, empty sandbox.")

    def stop(self, rest: str) -> None:
        """End the sandbox and delete its files. The folders of runs stay.

        With `--idle`, make room on the server instead: of the sandboxes of other notebooks, end the one that has been
        idle longest.
        """
        words = split_words("stop [--idle]", rest, 0, 1)
        if words == ["--idle"]:
            name = self.background.run(self.sandboxes.stop_idle())
            print(plain(f"The sandbox of {name} is ended.") if name else NO_IDLE)
            return
        if words:
            raise SandboxUsageError("The command is %sandbox stop [--idle].")
        stopped = self.background.run(self.sandboxes.stop(prepared=True))
        print("The sandbox is ended." if stopped else NO_SANDBOX)

    def _sandbox(self) -> Sandbox:
        sandbox = self.background.run(self.sandboxes.acquire(self.options()))
        self._print_notice()
        return sandbox

    def _print_notice(self) -> None:
        if notice := self.sandboxes.take_notice():
            print(notice)

    def _running(self) -> Sandbox:
        sandbox = self.background.run(self.sandboxes.current())
        self._print_notice()
        if sandbox is None:
            raise SandboxInputError(NO_SANDBOX)
        return sandbox

    def _is_folder(self, sandbox: Sandbox, path: str) -> bool:
        try:
            found = self.background.run(sandbox.list_files(path, depth=1, limit=1))
        except OSError:
            return False
        return not (len(found) == 1 and posixpath.normpath(found[0].path) == posixpath.normpath(path))


def status_text(status: SandboxStatus) -> str:
    """Return a few lines about the running sandbox, or one sentence that says that no sandbox is running."""
    if status.sandbox_id is None or status.protection is None:
        return NO_SANDBOX
    from dataclasses import asdict

    keeper = "the Jupyter server" if status.where == "server" else "this kernel"
    lines = [f"Sandbox {plain(status.sandbox_id)}, kept by {keeper}"]
    if status.started:
        lines[0] += f", started {format_duration(max(0.0, time.time() - status.started))} ago"
    lines.append(protection_text(asdict(status.protection)))
    lines += [status.protection.protects, status.protection.does_not_protect]
    lines += [f"{name}: {value}" for name, value in status.details.items()]
    return "\n".join(plain(line) for line in lines if line)


def listing(entries: list[FileEntry], folder: str) -> str:
    """Return a line for each entry, or one sentence that says that `folder` is empty."""
    lines = []
    for entry in entries:
        size = format_size(entry.size) if entry.kind == "file" else entry.kind
        lines.append(f"{size:>10}  {plain(entry.path)}")
    return "\n".join(lines) or f"{plain(folder)} is empty."


class _Printer:
    """Buffer that the loop's thread fills and the main thread prints. Notebooks show output of the main thread only."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[tuple[StreamName, bytes]] = queue.SimpleQueue()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def add(self, stream: StreamName, data: bytes) -> None:
        self._pieces.put((stream, data))

    def print(self) -> None:
        while not self._pieces.empty():
            stream, data = self._pieces.get()
            out = sys.stdout if stream == "stdout" else sys.stderr
            out.write(plain(self._decoders[stream].decode(data)))
            out.flush()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or "it is missing").lower()
