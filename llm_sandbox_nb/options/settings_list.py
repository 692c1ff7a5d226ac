"""Every setting with its value and source, as `llm-sandbox-nb settings` and `%sandbox settings` show it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.options.settings_files import PROJECT_FILE, user_file
from llm_sandbox_nb.options.values import SECRET, Value

_WIDTH = 40
"""Characters shown of a value."""


def settings_text(values: Mapping[str, Value], files: Iterable[Path], environment: Mapping[str, str]) -> str:
    """A line for each setting, those that are not the default first, and the files that were read."""
    read = [f"Read: {path}" for path in files]
    none = f"No settings file was found: make {PROJECT_FILE} here, or {user_file(environment)}."
    changed = [name for name, one in values.items() if one.source != "default"]
    rows = [(name, _shown(name, values[name].value), values[name].source) for name in changed]
    rows += [
        (name, _shown(name, one.value), one.source) for name, one in values.items() if name not in changed
    ]
    first = max(len(name) for name, _, _ in rows)
    second = max(len(value) for _, value, _ in rows)
    lines = [f"{name:<{first}}  {value:<{second}}  {source}".rstrip() for name, value, source in rows]
    return "\n".join([*(read or [none]), "", *lines])


def settings_json(values: Mapping[str, Value], files: Iterable[Path]) -> dict[str, Any]:
    """The same for a program."""
    shown = {
        name: {"value": "(set)" if name in SECRET and one.value else one.value, "source": one.source}
        for name, one in values.items()
    }
    return {"files": [str(path) for path in files], "settings": shown}


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in SECRET:
        return "(set)"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = "".join(one if one.isprintable() else "?" for one in text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
