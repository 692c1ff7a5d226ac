"""Definitions of the tools of MCP servers. A definition is checked, and has a name for the model and a hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_sandbox_nb.agent.run_options import DEFAULT_OPTIONS, RunOptions
from llm_sandbox_nb.agent.tools.arguments import check_required, converted
from llm_sandbox_nb.agent.tools.own_tool import RecordedTool
from llm_sandbox_nb.formatting import shorten
from llm_sandbox_nb.mcp_server.messages import Json
from llm_sandbox_nb.trajectory import events as ev

_MAX_NAME_CHARACTERS = 64
"""Maximum characters in the name of a tool. All providers accept names of this length."""
_MAX_DESCRIPTION_CHARACTERS = 4_000
_ODD_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
_REFUSED_KEYWORDS = frozenset({"allOf", "anyOf", "const", "enum", "not", "oneOf"})
"""Keywords that providers refuse at the top level of a schema. The server still applies them to the arguments."""


@dataclass(frozen=True)
class Definition:
    """Definition of a tool in the form that the model reads."""

    name: str
    """Name for the model, such as `server__tool`."""
    tool: str
    """Name that the server uses."""
    server: str
    sha256: str
    """SHA-256 of the definition that the server sent."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "tool": str(ev.clean_text(self.tool)), "sha256": self.sha256}


class DefinedTool(RecordedTool):
    """Tool with a definition that a server sent."""

    def __init__(self, definition: Definition) -> None:
        parameters = definition.parameters
        super().__init__(
            {"name": definition.name, "description": definition.description, "parameters": parameters}
        )
        self.definition = definition

    def parameters(self, options: RunOptions) -> dict[str, Any]:
        return dict(self.definition.parameters)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check that no required argument is missing. The server checks everything else."""
        properties = self.properties(DEFAULT_OPTIONS)
        known = {
            name: converted(value, properties.get(name, {}))
            for name, value in arguments.items()
            if value is not None or name in self.required
        }
        check_required(self.name, self.required, known, arguments)
        return known


def definition_of(raw: Json, name: str, server: str) -> Definition:
    """Convert a server's definition of a tool to a definition with a schema that every provider accepts.

    Args:
        raw: the definition as the server sent it. Its `name` must be a text.
        name: name for the model.
        server: name of the server.
    """
    described, schema = raw.get("description"), raw.get("inputSchema")
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    schema = schema if isinstance(schema, dict) else {}
    schema = {key: value for key, value in schema.items() if key not in _REFUSED_KEYWORDS}
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    properties = {key: value for key, value in properties.items() if isinstance(value, dict)}
    required = required if isinstance(required, list) else []
    required = [key for key in required if isinstance(key, str) and key in properties]
    schema |= {"type": "object", "properties": properties, "required": required}
    text = str(ev.clean_text(described)) if isinstance(described, str) else ""
    return Definition(
        name=name,
        tool=raw["name"],
        server=server,
        sha256=hashlib.sha256(canonical.encode()).hexdigest(),
        description=shorten(text, _MAX_DESCRIPTION_CHARACTERS),
        parameters=ev.clean_text(schema),
    )


def unused_name(wanted: str, *taken: Container[str]) -> str:
    """Return a name like `wanted` that every provider accepts and that is not in `taken`."""
    plain = _ODD_CHARACTER.sub("_", wanted)
    if len(plain) > _MAX_NAME_CHARACTERS:
        digest = hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()
        plain = f"{plain[: _MAX_NAME_CHARACTERS - 9]}_{digest[:8]}"
    name, number = plain, 1
    while any(name in names for names in taken):
        number += 1
        name = f"{plain[: _MAX_NAME_CHARACTERS - 5]}_{number}"
    return name
