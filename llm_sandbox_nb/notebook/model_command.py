"""The commands `%sandbox model` and `%sandbox key`.

`%sandbox model` shows which models there are and which one cells use, or chooses one. The side panel uses its answers.
`%sandbox key` reads the key of a model's provider from a password field, or forgets the key.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import warnings
from typing import Any

from IPython.core.error import StdinNotImplementedError

from llm_sandbox_nb.known_keys import KeyTextError, clean_key
from llm_sandbox_nb.model.connection import forget_keys, keep_key
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local_servers import LocalServer, find_local_servers
from llm_sandbox_nb.model.model_list import providers
from llm_sandbox_nb.model.model_names import (
    configured_models,
    local_names,
    make_model,
    provider_of,
    script_names,
)
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop
from llm_sandbox_nb.notebook.magic_line import take_value
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.plain_text import plain
from llm_sandbox_nb.sandbox.isolations import isolates

USAGE = "model [NAME [--api-base URL]] [--local] [--json]"
_MAX_NAMES = 8
"""Maximum number of printed names of one provider."""


class ModelCommand:
    """The command `%sandbox model`. Call an instance with the text after `model`."""

    def __init__(self, background: BackgroundLoop, settings: SandboxSettings) -> None:
        self._background, self._settings = background, settings

    def __call__(self, rest: str) -> None:
        """Show the model that cells use and the other models, or choose a model.

        Raises:
            SandboxUsageError: if the line is invalid, or no model has this name.
        """
        name, api_base, flags = _parsed(rest)
        if name is not None:
            print(plain(self._choose(name, api_base)))
            return
        local = self._background.run(find_local_servers()) if "--local" in flags else None
        print(json.dumps(self._described(local)) if "--json" in flags else plain(self._text(local)))

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
        """Return the models for the side panel, without keys and without addresses from the settings."""
        return {
            "model": self._settings.model,
            "providers": {name: list(found) for name, found in configured_models(os.environ).items()},
            "on_this_machine": local_names(),
            "scripted": [f"scripted/{name}" for name in script_names()],
            "local": None if local is None else [server._asdict() for server in local],
        }

    def _text(self, local: list[LocalServer] | None) -> str:
        model = self._settings.model
        lines = [f"Cells use {model}." if model else "No model is chosen: %sandbox model NAME chooses one."]
        for provider, found in configured_models(os.environ).items():
            lines.append(f"{provider} (its key is set): {_some(found)}")
        lines.append(f"local (on this machine, needs no key): {_some(local_names())}")
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
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more (the Tab key lists them)" if more > 0 else "")


def _parsed(rest: str) -> tuple[str | None, str, set[str]]:
    """Return the name, the address and the other options of a line. Raises SandboxUsageError."""
    wrong = SandboxUsageError(f"The command is %sandbox {USAGE}.")
    try:
        words = shlex.split(rest)
    except ValueError:
        raise wrong from None
    api_base = take_value(USAGE, words, "--api-base") or ""
    flags = {word for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1 or flags - {"--local", "--json"} or (names and flags) or (api_base and not names):
        raise wrong
    return (names[0] if names else None), api_base, flags


_NO_FIELD = (
    "This front end cannot ask for a key: set the variable of the key's provider, such as OPENAI_API_KEY, before the "
    "kernel starts. If your variable has another name, name it with --api-key-env."
)
_NO_PROVIDER = (
    "%sandbox key needs the name of a provider, as in %sandbox key openai. If you wrote the key itself there, "
    "remove it from the cell: notebooks and IPython's history keep what you write."
)


def key_command(rest: str, settings: SandboxSettings) -> None:
    """Ask for the key of a provider, or forget keys with `--forget`. `rest` holds the words after `%sandbox key`.

    Raises:
        SandboxUsageError: if the line is wrong, the front end cannot ask, or the typed text is not a key.
    """
    try:
        words = shlex.split(rest)
    except ValueError:
        raise SandboxUsageError(_NO_PROVIDER) from None
    named = [word for word in words if word != "--forget"]
    if len(named) > 1 or not set(named) <= providers():
        raise SandboxUsageError(_NO_PROVIDER)
    if "--forget" in words:
        forgotten = ", ".join(forget_keys(*named))
        print(f"Forgotten: the key for {forgotten}." if forgotten else "There was no typed key to forget.")
        return
    # The default is the provider of the model that cells use, or `openai` if they use no model or a scripted one.
    provider = named[0] if named else provider_of(settings.model, settings.api_base) or "openai"
    keep_key(provider, _asked(provider))
    print(
        f"Models of {provider} now use this key: in cells, benchmarks and solve(...) of this kernel. It is only in "
        "the kernel's memory, until the kernel ends or you run %sandbox key --forget."
    )
    if not isolates(settings.isolation):
        print(
            "Here a model's commands run with your rights and could read the key: use a key with a small budget."
        )


def _asked(provider: str) -> str:
    """Return the key that the person types. Raises SandboxUsageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # such a prompt would show the typed text
            key = getpass.getpass(f"Key for {provider}: ").strip()
    except (StdinNotImplementedError, getpass.GetPassWarning, EOFError):
        raise SandboxUsageError(_NO_FIELD) from None
    if not key:
        raise SandboxUsageError("No key was typed: run the cell again.")
    try:
        return clean_key(key, f"The key for {provider}")
    except KeyTextError:
        raise SandboxUsageError("A key has no spaces and only plain characters: copy it again.") from None
