"""Sources of the values of options.

The first source with a value wins: the flag or the option of the cell, `%config` (in a notebook), an environment
variable, the project's settings file, the user's settings file, the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import shorten, text_table
from llm_sandbox_nb.known_keys import PROVIDERS, KeyTextError, clean_key, key_variable
from llm_sandbox_nb.options.settings_files import (
    PROJECT_FILE,
    find_settings_files,
    read_settings_file,
    user_file,
)
from llm_sandbox_nb.options.table import (
    NOTEBOOK_OPTIONS,
    QUERY,
    RUN_OPTIONS,
    SETTINGS,
    Option,
    UsageError,
)
from llm_sandbox_nb.sandbox.limits import Limits

DEFAULT = "default"
SECRET = ("api_key", "api_key_env")
"""Options whose values are never shown. A person may have written the key itself into `api_key_env`."""
_VALUE_CHARACTERS = 40
"""Maximum shown characters of a value."""
_LOGIN = re.compile(r"(?<=://)[^/\s]*@")
"""Matches the user and the password in an address."""


@dataclass(frozen=True)
class Value:
    """Value of an option in the option's type, with a description of its source."""

    value: Any
    source: str


Layer = Mapping[str, tuple[Any, str]]
"""Values of one source by option name, before conversion, each with a description of its place in the source."""


def flag_layer(flags: Mapping[str, Any]) -> Layer:
    """Return the values of the command line."""
    names = {name: option.name for option in RUN_OPTIONS for name in (option.name, *option.aliases)}
    spelled = flags.get("spelled", {})
    return {
        names[key]: (value, spelled.get(key, f"--{key}"))
        for key, value in flags.items()
        if key in names and value is not None
    }


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """Return the values of the environment."""
    found = {}
    for option in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS):
        variable = next((name for name in option.environment if environment.get(name)), None)
        if variable:
            found[option.name] = (environment[variable], f"environment variable {variable}")
    return found


def file_layers(paths: Iterable[Path]) -> list[Layer]:
    """Return the values of settings files. Raises UsageError if a file is invalid."""
    return [
        {name: (value, f"{path}, {key}") for name, (value, key) in read_settings_file(path).items()}
        for path in paths
    ]


def resolve_options(options: Iterable[Option], layers: Iterable[Layer]) -> dict[str, Value]:
    """Return the value of every option. It comes from the first layer with the option, or else it is the default.

    Raises:
        UsageError: if a value is invalid. The message names the source.
    """
    layers = list(layers)
    found = {}
    for option in options:
        said = next((layer[option.name] for layer in layers if option.name in layer), None)
        found[option.name] = (
            Value(option.default, DEFAULT) if said is None else Value(converted(option, *said), said[1])
        )
    return found


def resolve_sources(
    flags: Mapping[str, Any], environment: Mapping[str, str], options: Iterable[Option] = RUN_OPTIONS
) -> tuple[dict[str, Value], tuple[Path, ...]]:
    """Return the value of every option with its source, and the settings files that were read.

    Raises:
        UsageError: if a value is invalid. The message names the source.
    """
    paths = find_settings_files(flags, environment)
    layers = [flag_layer(flags), environment_layer(environment), *file_layers(paths)]
    values = resolve_options(options, layers)
    values["api_key"] = find_key(values, environment)
    return values, paths


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of every option of `run`. The entry `settings` holds the settings files that were read.

    Raises:
        UsageError: if a value is invalid. The message names the source.
    """
    values, paths = resolve_sources(flags, environment)
    # an invalid setting of notebooks is also an error for every command that reads the file
    resolve_options(NOTEBOOK_OPTIONS, file_layers(paths))
    plain = {name: value.value for name, value in values.items()}
    return {QUERY.name: flags.get(QUERY.name), SETTINGS.name: paths, **plain}


def converted(option: Option, value: Any, source: str) -> Any:
    """Convert the value to the type of the option. Raises UsageError with the source in the message."""
    try:
        return option.convert(value)
    except ValueError as error:
        if option.name in SECRET:
            raise UsageError(f"{source}: {error}.") from None
        raise UsageError(f"{source}: {error}, not {value!r}.") from error


def find_key(values: Mapping[str, Value], environment: Mapping[str, str]) -> Value:
    """Return the model's key from the first source: the flag, `api_key_env`, `LLM_API_KEY`, the provider's variable.

    `api_key` in a settings file comes after these sources, because keys belong in the environment.

    Raises:
        UsageError: if the variable in `api_key_env` is not set, or the key has invalid characters.
    """
    found = _given_key(values, environment)
    if not found.value or (values["model"].value or "").startswith("scripted/"):
        return found
    try:
        return Value(clean_key(found.value, found.source), found.source)
    except KeyTextError as error:
        raise UsageError(f"{error}.") from None


def _given_key(values: Mapping[str, Value], environment: Mapping[str, str]) -> Value:
    given, named = values["api_key"], values["api_key_env"]
    if given.source.startswith("-"):  # a flag, perhaps its short form
        return given
    if named.value:
        if not (key := environment.get(named.value)):
            raise UsageError(
                f"{named.source}: the environment variable {named.value} is not set; put the key there."
            )
        return Value(key, f"environment variable {named.value}")
    if given.source.startswith("environment"):
        return given
    variable = _provider_variable(values["model"].value or "")
    if variable and environment.get(variable):
        return Value(environment[variable], f"environment variable {variable}")
    return given


def _provider_variable(model: str) -> str | None:
    """Return the name of the variable with the provider's key.

    A model name without a provider means an OpenAI-compatible server.
    """
    provider, slash, _ = model.partition("/")
    if not slash:
        provider = "anthropic" if model.startswith("claude") else "openai"
    return key_variable(provider) if provider in PROVIDERS else None


def fields_of(values: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Return the values that set fields of `owner`, an argument of `solve` such as "limits".

    If `owner` is empty, return the values that are arguments of `solve`. The keys of the result are names of fields or
    arguments: see `Option.sets`. Arguments that are None are left out, so that `solve` uses its default. A limit or
    setting that is None is kept, because None means no limit or the provider's choice.
    """
    fields = {}
    for option in RUN_OPTIONS:
        part, _, field = option.sets.rpartition(".")
        if field and part == owner and option.name in values:
            fields[field] = values[option.name]
    return fields if owner else {name: value for name, value in fields.items() if value is not None}


def sure_to_pause(step: bool, approve: str) -> str | None:
    """Return an option that makes the run pause in any case; None if no such option is given."""
    if step:
        return "--step"
    return None if approve == "auto" else f"--approve {approve}"


def sandbox_limits(values: Mapping[str, Any]) -> Limits | None:
    """Return the limits on resources that the options set. None if no option sets a limit."""
    megabyte = 1024**2
    memory, disk = values.get("memory_mb"), values.get("disk_mb")
    wanted = {
        "memory_bytes": memory and memory * megabyte,
        "pids": values.get("pids"),
        "cpus": values.get("cpus"),
        "disk_bytes": disk and disk * megabyte,
        "files": values.get("files"),
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return Limits(**given) if given else None


def sandbox_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `open_sandbox` that are not arguments of `solve`."""
    given = {name: value for name, value in fields_of(values, "sandbox").items() if value}
    limits = sandbox_limits(values)
    return given | ({"limits": limits} if limits else {})


def settings_text(values: Mapping[str, Value], files: Iterable[Path], environment: Mapping[str, str]) -> str:
    """Return the list of the files that were read, and a line for each setting. Changed settings come first."""
    read = [f"Read: {path}" for path in files]
    none = f"No settings file was found: make {PROJECT_FILE} here, or {user_file(environment)}."
    changed = [name for name, value in values.items() if value.source != "default"]
    rows = [(name, _shown(name, values[name].value), values[name].source) for name in changed]
    rows += [
        (name, _shown(name, value.value), value.source)
        for name, value in values.items()
        if name not in changed
    ]
    return "\n".join([*(read or [none]), "", text_table(rows)])


def settings_json(values: Mapping[str, Value], files: Iterable[Path]) -> dict[str, Any]:
    """Return the settings and their sources as values for JSON."""
    shown = {
        name: {
            "value": "(set)" if name in SECRET and value.value else _without_password(value.value),
            "source": value.source,
        }
        for name, value in values.items()
    }
    return {"files": [str(path) for path in files], "settings": shown}


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in SECRET:
        return "(set)"
    value = _without_password(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return shorten(text, _VALUE_CHARACTERS)


def _without_password(value: Any) -> Any:
    """Return a value without user and password in its addresses, because people show this list to others."""
    if isinstance(value, list):
        return [_without_password(item) for item in value]
    return _LOGIN.sub("(hidden)@", value) if isinstance(value, str) else value
