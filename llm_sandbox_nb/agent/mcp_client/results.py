"""Results of MCP calls. The model reads their text, and their files are written into the sandbox."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import posixpath
from typing import Any

from llm_sandbox_nb.agent.tools.own_tool import bounded
from llm_sandbox_nb.agent.tools.tool import Outcome, ToolContext
from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.mcp_server.messages import Json
from llm_sandbox_nb.sandbox.errors import SandboxLostError

_MAX_FILES = 20
"""Maximum number of files in a result that are written."""
_FOLDER = "mcp"
"""Folder for the files of results, in the output folder of the sandbox."""


async def outcome_of(tool: str, result: Json, context: ToolContext) -> Outcome:
    """Return the outcome of a call. Pictures, sounds and files in its result are written into the sandbox."""
    content = result.get("content")
    parts, files = list[str](), 0
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        text = _text(block)
        if text is None:
            files += 1
            text = (
                await _saved(tool, block, context)
                if files <= _MAX_FILES
                else "[one more file, which was not kept]"
            )
        parts.append(text)
    structured = result.get("structuredContent")
    if structured is not None and not any(parts):
        parts.append(json.dumps(structured, ensure_ascii=False))
    observation = bounded("\n".join(parts)) or "(no output)"
    raw = json.dumps(result).encode()
    if result.get("isError"):
        return Outcome(f"Error: {observation}", error="tool_failed", raw=raw)
    return Outcome(observation, raw=raw)


def _text(block: Json) -> str | None:
    """Return the text of a part of a result. None if the part is a file."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"[link: {str(block.get('uri', ''))[:2_000]}]"
        case "resource":
            resource = block.get("resource")
            if not isinstance(resource, dict) or "blob" not in resource:
                return str(resource.get("text", "")) if isinstance(resource, dict) else ""
            return None
        case "image" | "audio":
            return None
    return f"[a part of the kind {str(block.get('type'))[:40]!r}, which cannot be shown]"


async def _saved(tool: str, block: Json, context: ToolContext) -> str:
    """Write a file into the sandbox. Return a text that names the file or the problem."""
    resource: Any = block["resource"] if block["type"] == "resource" else block
    encoded, mime = resource.get("blob", resource.get("data")), str(resource.get("mimeType", ""))
    try:
        data = base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        return "[a file that is not valid base64]"
    # The name depends on the content alone, so that a replay writes the same file.
    suffix = mimetypes.guess_extension(mime.partition(";")[0].strip()) or ".bin"
    name = f"{tool}-{hashlib.sha256(data).hexdigest()[:12]}{suffix}"
    folder = posixpath.join(context.output_dir or context.box.directories.output, _FOLDER)
    path = posixpath.join(folder, name)
    try:
        await context.box.exec(["mkdir", "-p", "--", folder])
        await context.box.write_file(path, data)
    except SandboxLostError:
        raise
    except OSError as error:
        return f"[a file of {format_size(len(data))} that could not be written: {error.strerror or error}]"
    return f"[file: {path}, {format_size(len(data))}]"
