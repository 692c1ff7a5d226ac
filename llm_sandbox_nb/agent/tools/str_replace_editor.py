"""The tool `str_replace_editor`, which views, creates and edits text files. An edit changes no other byte of a file."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.text_file import (
    NotEncodableError,
    NotTextError,
    TextFile,
    count_lines,
    decode_text,
    insert_after,
    replace_once,
)
from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.errors import OutputLimitExceededError
from llm_sandbox_nb.trajectory.events import clean_text

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Maximum size of a file that can be viewed or edited."""
VIEW_CHARACTERS = 16_000
"""Maximum number of characters of a file that a `view` shows."""
SNIPPET_LINES = 4
_MAX_LISTED_ENTRIES = 200
_MAX_NAMED_LINES = 20


class EditorError(LLMSandboxError):
    """Error for a command that cannot be executed. The command changes nothing. The model reads the message."""


@dataclass(frozen=True)
class Editor:
    """Editor for one sandbox. Each command returns the text for the model."""

    box: Sandbox

    async def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """Return the lines of a text file, or a range of them, with line numbers. List a folder two levels deep.

        Raises:
            EditorError: if the file is missing or binary, or the range is invalid.
        """
        try:
            file = await self.read(path)
        except IsADirectoryError:
            if view_range is not None:
                raise EditorError(f"{path} is a directory: view it without view_range.") from None
            return await self._list(path)
        total = count_lines(file.text)
        if not total:
            return f"{path} is empty."
        first, last = _checked_range(path, view_range, total)
        body, shown = _numbered(file.text, first, last, VIEW_CHARACTERS)
        return "\n".join(filter(None, (_headline(path, file, total), body, _clipped(shown, last, total))))

    async def create(self, path: str, file_text: str) -> str:
        """Create a file, and its parent folders if they do not exist.

        Raises:
            EditorError: if the path exists already, or cannot be written.
        """
        try:
            await self.box.write_file(path, file_text.encode(), exclusive=True)
        except (FileExistsError, IsADirectoryError) as error:
            raise EditorError(
                f"{path} exists already, and create never overwrites: use str_replace or insert to change "
                "it, or execute_bash to remove it first."
            ) from error
        except (OSError, ValueError) as error:
            raise EditorError(failure_reason("write", path, error)) from error
        return f"{path} was created: {_lines(count_lines(file_text))}, {len(file_text.encode())} bytes."

    async def str_replace(self, path: str, old_str: str, new_str: str = "") -> str:
        """Replace the only occurrence of `old_str` in a file. If `new_str` is empty, remove the occurrence.

        Raises:
            EditorError: if `old_str` does not occur exactly once, or the file cannot be edited.
        """
        if not old_str:
            raise EditorError("old_str is empty: give the text that is to be replaced, or use insert.")
        if old_str == new_str:
            raise EditorError("old_str and new_str are the same: there is nothing to change.")
        file = await self.read_for_edit(path)
        edited, places = replace_once(file, old_str, new_str)
        if edited is None:
            raise EditorError(not_once(path, file.text, old_str, places))
        await self.write(path, edited)
        line = file.text.count("\n", 0, places[0]) + 1
        return _edited(path, edited, line, line + new_str.count("\n"))

    async def insert(self, path: str, insert_line: int, new_str: str) -> str:
        """Insert complete lines after line `insert_line` of a file. 0 inserts at the beginning.

        Raises:
            EditorError: if the file has no such line, or cannot be edited.
        """
        file = await self.read_for_edit(path)
        total = count_lines(file.text)
        if not 0 <= insert_line <= total:
            raise EditorError(
                f"insert_line {insert_line} is out of range: {path} has {_lines(total)}, so 0 to {total}."
            )
        edited = insert_after(file, insert_line, new_str)
        await self.write(path, edited)
        return _edited(path, edited, insert_line + 1, insert_line + max(1, count_lines(new_str)))

    async def read(self, path: str) -> TextFile:
        """Read a text file.

        Raises:
            EditorError: if the file cannot be read, is too large, or is binary.
            IsADirectoryError: if the path is a folder.
        """
        try:
            data = await self.box.read_file(path, limit=MAX_FILE_BYTES)
        except OutputLimitExceededError as error:
            raise EditorError(
                f"{path} is larger than {MAX_FILE_BYTES // 1024**2} MB: use execute_bash, with grep or sed."
            ) from error
        except IsADirectoryError:
            raise
        except (OSError, ValueError) as error:
            raise EditorError(failure_reason("read", path, error)) from error
        try:
            return decode_text(data)
        except NotTextError as error:
            raise EditorError(
                f"{path} is a binary file ({len(data)} bytes), and this tool is for text: use execute_bash."
            ) from error

    async def read_for_edit(self, path: str) -> TextFile:
        """Read a text file. Raises EditorError after a failure, even if the path is a folder."""
        try:
            return await self.read(path)
        except IsADirectoryError as error:
            raise EditorError(f"{path} is a directory: only files can be edited.") from error

    async def write(self, path: str, file: TextFile) -> None:
        """Write a file. Raises EditorError after a failure."""
        try:
            await self.box.write_file(path, file.encode())
        except NotEncodableError as error:
            raise EditorError(
                f"{path} is in the encoding {file.encoding}, which has no {error}: nothing was changed. "
                "Convert the file to UTF-8 first, for example with iconv, or write it another way."
            ) from error
        except (OSError, ValueError) as error:
            raise EditorError(failure_reason("write", path, error)) from error

    async def _list(self, path: str) -> str:
        try:
            entries = await self.box.list_files(path, depth=2)
        except (OSError, ValueError) as error:
            raise EditorError(failure_reason("list", path, error)) from error
        folder = posixpath.normpath(posixpath.join(self.box.directories.root, path))
        names = [
            f"{entry.path}/" if entry.kind == "directory" else entry.path
            for entry in entries
            if not any(
                part.startswith(".") and part != ".."
                for part in posixpath.relpath(entry.path, folder).split("/")
            )
        ]
        head = f"{path}, two levels deep, hidden names left out:"
        if not names:
            return f"{head}\n(nothing)"
        more = len(names) - _MAX_LISTED_ENTRIES
        tail = [f"[{more} more are not shown: view a folder below, or use execute_bash]"] if more > 0 else []
        return "\n".join([head, *names[:_MAX_LISTED_ENTRIES], *tail])


def _checked_range(path: str, view_range: Sequence[int] | None, total: int) -> tuple[int, int]:
    if view_range is None:
        return 1, total
    if len(view_range) != 2:
        raise EditorError(
            "view_range takes two numbers, [first_line, last_line]; -1 as the last means to the end."
        )
    first, last = view_range
    if not 1 <= first <= total:
        raise EditorError(
            f"view_range {list(view_range)}: {path} has {_lines(total)}, so the first is 1 to {total}."
        )
    if last != -1 and last < first:
        raise EditorError(f"view_range {list(view_range)}: the last line comes before the first.")
    return first, total if last == -1 else min(last, total)


def _headline(path: str, file: TextFile, total: int) -> str:
    marks = [_lines(total)]
    if file.encoding != "utf-8" or file.mark:
        marks.append(f"encoding {file.encoding}{' with byte order mark' if file.mark else ''}")
    if file.errors != "strict":
        marks.append("some bytes are not UTF-8; they stay as they are")
    if file.crlf:
        marks.append("lines end with CR LF")
    if not file.text.endswith("\n"):
        marks.append("no line end at the end")
    return f"{path} ({', '.join(marks)}):"


def _numbered(text: str, first: int, last: int, room: int) -> tuple[str, int]:
    """Return the lines `first` to `last` with numbers, like `cat -n`, and the number of the last returned line.

    At most about `room` characters are returned. If the first line alone is too long, it is cut.
    """
    rows: list[str] = []
    place = 0
    for _ in range(first - 1):
        place = text.find("\n", place) + 1
    for number in range(first, last + 1):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        line = text[place : min(end, place + room)].removesuffix("\r")
        row = (
            f"{number:6}\t{clean_text(line)}"  # bytes that could not be decoded become replacement characters
        )
        if len(row) > room and rows:
            return "\n".join(rows), number - 1
        cut = end - place > room
        rows.append(f"{row} [line cut: it has {end - place} characters]" if cut else row)
        room -= len(row) + 1
        if cut:
            return "\n".join(rows), number
        place = end + 1
    return "\n".join(rows), last


def _clipped(shown: int, last: int, total: int) -> str:
    if shown >= last:
        return ""
    following = [shown + 1, total]
    return f"[lines {shown + 1} to {last} are not shown: view them with view_range, for example {following}]"


def _edited(path: str, file: TextFile, first: int, last: int) -> str:
    total = count_lines(file.text)
    if not total:
        return f"{path} was changed: it is empty now."
    first, last = max(1, first - SNIPPET_LINES), min(total, last + SNIPPET_LINES)
    body, shown = _numbered(file.text, min(first, total), last, VIEW_CHARACTERS)
    return "\n".join(filter(None, (f"{path} was changed. Lines {first} to {shown} are now:", body)))


def not_once(path: str, text: str, old: str, places: list[int], name: str = "old_str") -> str:
    """Return the error message for a text that does not occur exactly once. `name` is the argument with the text."""
    if places:
        lines = [text.count("\n", 0, place) + 1 for place in places[:_MAX_NAMED_LINES]]
        more = " and more" if len(places) > _MAX_NAMED_LINES else ""
        return (
            f"{name} is in {path} {len(places)} times, at lines {', '.join(map(str, lines))}{more}: add "
            "lines around it until it is unique. Nothing was changed."
        )
    near = _near_miss(text, old)
    hint = (
        f" Line {near} differs only in blanks: copy it exactly."
        if near
        else " View the file and copy it exactly."
    )
    return f"{name} is not in {path}.{hint} Nothing was changed."


def _near_miss(text: str, old: str) -> int | None:
    """Return the line at which `old` occurs if differences in white space are ignored. None if there is none."""

    def plain(part: str) -> str:
        return "".join(f"\n{' '.join(line.split())}" for line in part.split("\n")) + "\n"

    lines, wanted = plain(text), plain(old.strip("\r\n"))
    place = lines.find(wanted) if wanted.strip() else -1
    return None if place < 0 else lines.count("\n", 0, place) + 1


def failure_reason(verb: str, path: str, error: Exception) -> str:
    """Return a sentence that says why a file could not be read, written or listed."""
    match error:
        case FileNotFoundError():
            return f"{path} does not exist."
        case NotADirectoryError():
            return f"{path} cannot be reached: a part of the path is a file, not a directory."
        case PermissionError():
            return f"No permission to {verb} {path}, or it is not a regular file."
        case OSError() if error.strerror:
            return f"Could not {verb} {path}: {error.strerror}."
    return f"Could not {verb} {path}: {error}."


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


class StrReplaceEditor(Tool):
    """Tool that views and edits text files."""

    name = "str_replace_editor"
    description = """View, create and edit text files, exact to the byte.
* `view`: a file with line numbers, whole or `view_range`; a directory two levels deep without hidden names.
* `create`: a new file with `file_text`. It never overwrites.
* `str_replace`: replace `old_str` by `new_str`. `old_str` has to be in the file exactly once, blanks and \
tabs included; take in lines around it until it is unique.
* `insert`: put `new_str` in as whole lines after line `insert_line`."""
    required = ("command", "path")
    view = CallView(headline=("command", "path"), in_diff=("file_text", "old_str", "new_str"))
    only_edits = True

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "command": {"type": "string", "enum": list(_REQUIRED), "description": "What to do."},
            "path": {
                "type": "string",
                "description": "Full path of the file or directory, such as /testbed/a.py.",
            },
            "file_text": {"type": "string", "description": "For `create`: the whole content."},
            "old_str": {"type": "string", "description": "For `str_replace`: the text to replace."},
            "new_str": {
                "type": "string",
                "description": "For `str_replace`: what replaces it, nothing if left out. "
                "For `insert`: the lines to put in.",
            },
            "insert_line": {
                "type": "integer",
                "description": "For `insert`: the line after which; 0 is the top.",
            },
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "For `view` of a file: [first_line, last_line], from 1; -1 as last is the end.",
            },
        }

    def required_with(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        return (*self.required, *_REQUIRED.get(arguments.get("command", ""), ()))

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        try:
            return Outcome(await _edit(Editor(context.box), arguments))
        except EditorError as error:
            return Outcome(f"Error: {error}", error="editor")


_REQUIRED: dict[str, tuple[str, ...]] = {
    "view": (),
    "create": ("file_text",),
    "str_replace": ("old_str",),
    "insert": ("insert_line", "new_str"),
}
"""Arguments that each command requires in addition to the path."""


async def _edit(editor: Editor, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    if not path or "\x00" in path:
        raise EditorError("`path` has to name a file or directory.")
    match arguments["command"]:
        case "view":
            return await editor.view(path, arguments.get("view_range"))
        case "create":
            return await editor.create(path, arguments["file_text"])
        case "str_replace":
            return await editor.str_replace(path, arguments["old_str"], arguments.get("new_str", ""))
        case _:
            return await editor.insert(path, arguments["insert_line"], arguments["new_str"])
