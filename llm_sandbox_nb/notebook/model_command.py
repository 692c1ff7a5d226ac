"""`%sandbox model`: which model cells use, which can be chosen, and choosing one. The side panel uses it too."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from llm_sandbox_nb.card.text import plain
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local_servers import LocalServer, find_local_servers
from llm_sandbox_nb.model.model_names import configured_models, make_model, script_names
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop
from llm_sandbox_nb.notebook.settings import SandboxSettings

USAGE = "model [NAME [--api-base URL]] [--local] [--json]"
_SHOWN = 8
"""Names of a provider in the printed list."""


class ModelCommand:
    """Call it with the words after `%sandbox model`."""

    def __init__(self, background: BackgroundLoop, settings: SandboxSettings) -> None:
        self._background, self._settings = background, settings

    def __call__(self, rest: str) -> None:
        """Show what cells use and what can be chosen, or choose.

        Raises:
            SandboxUsageError: the line cannot be understood, or the name is no model's.
        """
        name, api_base, flags = _parsed(rest)
        if name is not None:
            print(plain(self._choose(name, api_base)))
            return
        local = self._background.run(find_local_servers()) if "--local" in flags else None
        print(json.dumps(self._described(local)) if "--json" in flags else plain(self._told(local)))

    def _choose(self, name: str, api_base: str) -> str:
        try:
            make_model(name, api_base=api_base or None)
        except ModelError as error:
            raise SandboxUsageError(str(error)) from error
        before = self._settings.api_base
        self._settings.model, self._settings.api_base = name, api_base
        lines = [f"Cells of this notebook now use {name}{f' at {api_base}' if api_base else ''}."]
        if before and before != api_base:
            lines.append("The api_base set before is not used any more: --api-base URL sets one.")
        lines.append("To keep the choice, write this into the notebook's first cell:")
        lines.append(f"%config SandboxMagics.model = {name!r}")
        if api_base:
            lines.append(f"%config SandboxMagics.api_base = {api_base!r}")
        return "\n".join(lines)

    def _described(self, local: list[LocalServer] | None) -> dict[str, Any]:
        """For the side panel; it has no key, and no address of the settings, which may hold one."""
        return {
            "model": self._settings.model,
            "providers": {name: list(found) for name, found in configured_models(os.environ).items()},
            "scripted": [f"scripted/{name}" for name in script_names()],
            "local": None if local is None else [server._asdict() for server in local],
        }

    def _told(self, local: list[LocalServer] | None) -> str:
        model = self._settings.model
        lines = [f"Cells use {model}." if model else "No model is chosen: %sandbox model NAME chooses one."]
        for provider, found in configured_models(os.environ).items():
            lines.append(f"{provider} (its key is set): {_some(found)}")
        lines.append(f"scripted (needs no key): {_some([f'scripted/{name}' for name in script_names()])}")
        for server in local or ():
            names = _some(server.models)
            lines.append(f"{server.program} at {server.api_base} (add --api-base {server.api_base}): {names}")
        if local == []:
            lines.append("No model server answers at the usual ports of this machine.")
        if local is None:
            lines.append("%sandbox model --local also looks for model servers on this machine.")
        return "\n".join(lines)


def _some(names: Any) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more (the Tab key lists them)" if more > 0 else "")


def _parsed(rest: str) -> tuple[str | None, str, set[str]]:
    """The name, the address and the other options of a line. Raises SandboxUsageError."""
    wrong = SandboxUsageError(f"%sandbox {USAGE} is how to call it.")
    try:
        words = shlex.split(rest)
    except ValueError:
        raise wrong from None
    api_base = ""
    if "--api-base" in words:
        place = words.index("--api-base")
        if place + 1 == len(words):
            raise wrong
        api_base = words[place + 1]
        del words[place : place + 2]
    flags = {word for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1 or flags - {"--local", "--json"} or (names and flags) or (api_base and not names):
        raise wrong
    return (names[0] if names else None), api_base, flags
