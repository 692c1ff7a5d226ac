"""The command line `llm-sandbox-nb COMMAND`: the module of each command, and the exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_sandbox_nb.options.table import UsageError
from llm_sandbox_nb.windows import NO_SANDBOX, WITH_SANDBOX, is_windows

ENDED_WELL = 0
FAILED = 1
"""The command failed for a reason that has no exit code of its own."""
USAGE = 2
"""The command line, or a file that it names, is invalid. Nothing was started."""
MODEL_ERROR = 3
"""The model could not be asked, or gave up."""
SANDBOX_ERROR = 4
"""There is no sandbox: the engine or the image is missing or not allowed, or the sandbox died."""
LIMIT_REACHED = 5
"""Steps, tokens, cost or time ran out before the model was done."""
NO_ANSWER = 6
"""The model gave no answer, or refused."""
CHECK_FAILED = 7
"""The check of the result failed, or could not run."""
INTERRUPTED = 130
_BROKEN_PIPE = 141
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_MODULES = {
    "run": "run_command",
    "resume": "resume_command",
    "examples": "run_command",
    "image": "setup_commands",
    "doctor": "setup_commands",
    "models": "setup_commands",
    "settings": "setup_commands",
    "runs": "record_commands",
    "show": "record_commands",
    "export": "record_commands",
    "analyze": "record_commands",
    "convert": "convert_command",
    "benchmark": "benchmark_command",
    "train": "train_command",
    "mcp": "mcp_command",
}
"""Module of each command. Only the module of the given command is imported, because imports are slow."""
_BY_STOP_REASON = {
    "submitted": ENDED_WELL,
    "answered": ENDED_WELL,
    "steps": LIMIT_REACHED,
    "tokens": LIMIT_REACHED,
    "total_tokens": LIMIT_REACHED,
    "cost": LIMIT_REACHED,
    "time": LIMIT_REACHED,
    "interrupted": INTERRUPTED,
    "model_error": MODEL_ERROR,
    "sandbox_lost": SANDBOX_ERROR,
    "no_answer": NO_ANSWER,
    "refused": NO_ANSWER,
    "repeated": LIMIT_REACHED,
}


def exit_code(stop_reason: str | None, checked: str = "") -> int:
    """Return the exit code for the stop reason of a run; `checked` is the verdict of its check, as in `RunState`."""
    if checked in ("failed", "error"):
        return CHECK_FAILED
    return _BY_STOP_REASON.get(stop_reason or "", FAILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. On a failure, print a message to stderr."""
    if arguments is None:
        _require_utf8()
        # Prevent httpx from importing its command line, which would take an eighth of the start time of `run`.
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as with `>&-`
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end of this process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(sys.argv[1:] if arguments is None else list(arguments))
    except UsageError as error:
        from llm_sandbox_nb.plain_text import plain

        print(plain(str(error)), file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK_FULL_ERRNOS:
            raise
        where = f" to {error.filename}" if error.filename else ""
        print(
            f"Nothing more can be written{where} ({error.strerror}): free disk space, then repeat the command.",
            file=sys.stderr,
        )
        _drop_output()
        return FAILED


def on_signals(action: Callable[[], object], *numbers: signal.Signals) -> None:
    """Let the running event loop call `action` at these signals. A signal that `nohup` ignores stays ignored."""
    import asyncio

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, action)


def _require_utf8() -> None:
    """Start this program again in Python's UTF-8 mode if the locale has another encoding for file names.

    File names in sandboxes are UTF-8, and an encoding such as Latin-1 or ASCII lacks some of their characters.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _drop_output() -> None:
    """Discard the rest of the output to stdout, including the buffered output that Python writes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    from llm_sandbox_nb.cli.parser import command_words, make_parser

    parser, commands = make_parser()
    parsed, unknown = parser.parse_known_args(command_words(arguments))
    if unknown:
        words = (parsed.command, getattr(parsed, "action", None), getattr(parsed, "data_action", None))
        commands[" ".join(filter(None, words))].unknown(unknown)
    if not parsed.command:
        parser.print_help()
        return USAGE
    command = "examples NAME" if parsed.command == "examples" and parsed.name else parsed.command
    if command in WITH_SANDBOX and is_windows():
        print(NO_SANDBOX, file=sys.stderr)
        return SANDBOX_ERROR
    module = importlib.import_module(f"llm_sandbox_nb.cli.{_MODULES[parsed.command]}")
    code: int = getattr(module, f"{parsed.command}_command")(parsed)
    return code


if __name__ == "__main__":
    sys.exit(main())
