"""File tools for outside agents: `read_file`, `write_file`, `edit_file`, `list_files` and `create_checkpoint`."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.str_replace_editor import (
    MAX_FILE_BYTES,
    Editor,
    EditorError,
    failure_reason,
    not_once,
)
from llm_sandbox_nb.agent.tools.text_file import TextFile, count_lines, replace_all, replace_once
from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext
from llm_sandbox_nb.formatting import format_size, plural
from llm_sandbox_nb.trajectory.events import clean_text

MAX_RESULT_LENGTH = 20_000
"""Maximum number of characters of a file, or of a list of files, in a result."""
_MAX_LABEL_LENGTH = 200


class _FileTool(Tool):
    """Base class of the file tools. The caller reads a failure as the observation. A failed call changes nothing."""

    only_edits = True

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        editor = Editor(context.box)
        try:
            if "path" in arguments and not arguments["path"]:
                raise EditorError("`path` has to name a file or directory.")
            return await self.work(editor, arguments)
        except EditorError as error:
            return Outcome(f"Error: {error}", error="editor", data={"error": str(error)})

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        """Execute a call. Raises EditorError after a failure."""
        raise NotImplementedError


class ReadFile(_FileTool):
    """Tool that reads lines of a text file."""

    name = "read_file"
    description = "Read lines of a text file."
    required = ("path",)
    view = CallView(headline=("path",))

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "path": {"type": "string", "description": "The file."},
            "offset": {"type": "integer", "description": "The first line, from 1."},
            "limit": {"type": "integer", "description": "How many lines."},
        }

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        path = arguments["path"]
        try:
            file = await editor.read(path)
        except IsADirectoryError:
            raise EditorError(f"{path} is a directory: list_files shows what is in it.") from None
        total, first = count_lines(file.text), max(1, arguments.get("offset", 1))
        if first > max(1, total):
            raise EditorError(f"{path} has {plural(total, 'line')}, so there is no line {first}.")
        if (limit := arguments.get("limit", 2000)) < 1:
            raise EditorError(f"limit has to be at least 1, not {limit}.")
        lines = list(io.StringIO(file.text))  # unlike str.splitlines, only LF ends a line
        chosen = lines[first - 1 : first - 1 + limit]
        room, shown = MAX_RESULT_LENGTH, []
        for line in chosen:
            if len(line) > room:
                break
            shown.append(line)
            room -= len(line)
        if chosen and not shown:
            shown = [chosen[0][:MAX_RESULT_LENGTH]]
        last = first + len(shown) - 1
        content = str(clean_text("".join(shown)))
        cut = bool(chosen) and not "".join(shown).endswith(chosen[len(shown) - 1])
        data = {
            "path": path,
            "content": content,
            "first_line": first,
            "last_line": last,
            "total_lines": total,
            "truncated": last < total or cut,
        }
        more = (
            f"\n[lines {last + 1} to {total} are not shown: read on with offset {last + 1}]"
            if last < total
            else ""
        )
        if cut:
            more = f"\n[line {last} is cut: it has {len(chosen[len(shown) - 1])} characters]{more}"
        return Outcome((content or f"{path} is empty.") + more, data=data)


class WriteFile(_FileTool):
    """Tool that writes a complete file."""

    name = "write_file"
    description = "Write a whole file; an existing one is replaced."
    required = ("path", "content")
    view = CallView(headline=("path",), in_diff=("content",))

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "path": {"type": "string", "description": "The file."},
            "content": {"type": "string", "description": "All of its text."},
        }

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        path, content = arguments["path"], arguments["content"]
        await editor.write(path, TextFile(content))
        size = len(content.encode())
        text = f"{path} was written: {plural(count_lines(content), 'line')}, {plural(size, 'byte')}."
        return Outcome(text, data={"path": path, "bytes": size})


class EditFile(_FileTool):
    """Tool that replaces one or all occurrences of a text in a file."""

    name = "edit_file"
    description = "Replace text in a file."
    required = ("path", "old_string", "new_string")
    view = CallView(headline=("path",), in_diff=("old_string", "new_string"))

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "path": {"type": "string", "description": "The file."},
            "old_string": {"type": "string", "description": "The text to replace."},
            "new_string": {"type": "string", "description": "What replaces it."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        }

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        path, old, new = arguments["path"], arguments["old_string"], arguments["new_string"]
        if not old:
            raise EditorError("old_string is empty: give the text that is to be replaced, or use write_file.")
        if old == new:
            raise EditorError("old_string and new_string are the same: there is nothing to change.")
        file = await editor.read_for_edit(path)
        if arguments.get("replace_all"):
            edited, count = replace_all(file, old, new, MAX_FILE_BYTES)
            if not count:
                raise EditorError(not_once(path, file.text, old, [], "old_string"))
            if edited is None:
                raise EditorError(
                    f"{path} would be larger than {MAX_FILE_BYTES // 1024**2} MB: replace less."
                )
        else:
            edited, places = replace_once(file, old, new)
            count = 1
            if edited is None:
                raise EditorError(not_once(path, file.text, old, places, "old_string"))
        await editor.write(path, edited)
        return Outcome(
            f"{path} was changed: {plural(count, 'replacement')}.", data={"path": path, "replacements": count}
        )


class ListFiles(_FileTool):
    """Tool that lists a folder."""

    name = "list_files"
    description = "List a folder, with sizes."
    view = CallView(headline=("path",))

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {
            "path": {"type": "string", "description": "The folder."},
            "depth": {"type": "integer", "description": "How many levels."},
            "max_entries": {"type": "integer", "description": "The most entries."},
        }

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        path, most = arguments.get("path", "."), max(1, arguments.get("max_entries", 200))
        try:
            found = await editor.box.list_files(path, depth=max(1, arguments.get("depth", 2)))
        except (OSError, ValueError) as error:
            raise EditorError(failure_reason("list", path, error)) from error
        folder = posixpath.normpath(posixpath.join(editor.box.directories.root, path))
        rows, entries, room = list[str](), list[dict[str, Any]](), MAX_RESULT_LENGTH
        for entry in found[:most]:
            name = str(clean_text(posixpath.relpath(entry.path, folder)))
            size = format_size(entry.size) if entry.kind == "file" else entry.kind
            rows.append(f"{size:>10}  {name}")
            room -= len(rows[-1])
            if room < 0:
                rows.pop()
                break
            entries.append({"path": name, "kind": entry.kind, "size": entry.size})
        left = len(found) - len(entries)
        more = f"\n[{left} more are not shown: list a folder below]" if left else ""
        data = {"path": folder, "entries": entries, "truncated": left > 0}
        return Outcome(("\n".join(rows) or f"{path} is empty.") + more, data=data)


class LabelCheckpoint(_FileTool):
    """Tool that gives the current files a label. The files do not change."""

    name = "create_checkpoint"
    description = "Give the files as they are now a label."
    required = ("label",)
    view = CallView(headline=("label",))

    def properties(self, options: RunOptions) -> dict[str, dict[str, Any]]:
        return {"label": {"type": "string", "description": "A short name."}}

    async def work(self, editor: Editor, arguments: Mapping[str, Any]) -> Outcome:
        label = arguments["label"].strip()
        if not label or len(label) > _MAX_LABEL_LENGTH or label.isdecimal() or label in ("now", "undo"):
            raise EditorError("A label is a short name, and neither a number nor `now` nor `undo`.")
        return Outcome(f"The files as they are now have the label {label}.", data={"label": label})


FILE_TOOLS = (ReadFile(), WriteFile(), EditFile(), ListFiles(), LabelCheckpoint())
