"""Where values of options come from: flag, then environment variable, then settings file, then default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.options.errors import UsageError
from llm_sandbox_nb.options.table import QUERY, RUN_OPTIONS, SETTINGS, Option

_FILE_NAMES = ("llm-sandbox-nb.yaml", "llm-in-sandbox.yaml", "llm_in_sandbox.yaml")
_HOME_NAMES = (
    ".config/llm-sandbox-nb/settings.yaml", ".llm-in-sandbox/config.yaml", ".llm-in-sandbox.yaml",
)  # fmt: skip
_PROVIDER_KEYS = (
    ("anthropic/", "ANTHROPIC_API_KEY"),
    ("claude", "ANTHROPIC_API_KEY"),
    ("openai/", "OPENAI_API_KEY"),
)


def find_settings_file(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Path | None:
    """The settings file to read: the one named by flag or environment, else the first usual one there is.

    Raises:
        UsageError: a file was named and is not there.
    """
    named, source = _named_settings_file(flags, environment)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise UsageError(f"{source}: there is no settings file {named}; check the path.")
        return path
    places = [Path(name) for name in _FILE_NAMES] + [Path.home() / name for name in _HOME_NAMES]
    return next((path for path in places if path.is_file()), None)


def _named_settings_file(flags: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[str, str]:
    if flags.get(SETTINGS.name) is not None:
        return str(flags[SETTINGS.name]), f"--{SETTINGS.name}"
    variable = next((name for name in SETTINGS.environment if environment.get(name)), "")
    return environment.get(variable, ""), variable


def read_settings_file(path: Path) -> dict[str, Any]:
    """The values of a settings file.

    Raises:
        UsageError: it is not YAML, not a mapping, or holds a key that is no option.
    """
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The settings file {path} cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        where = f" near line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        raise UsageError(f"The settings file {path} is not valid YAML{where}; mend it there.") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UsageError(f"The settings file {path} must hold lines like `llm_name: openai/gpt-5`.")
    known = [option.name for option in RUN_OPTIONS if option.in_file]
    for key in loaded:
        if key not in known:
            raise UsageError(
                f"The settings file {path} has an unknown key {key!r}{did_you_mean(str(key), known)}"
            )
    return {str(key): value for key, value in loaded.items() if value is not None}


def did_you_mean(word: str, known: list[str]) -> str:
    """The end of a sentence about an unknown word."""
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}."


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The value of every option of `run`, and `settings`: the file that was read, or None.

    Raises:
        UsageError: a value cannot be understood; says which one, and where it came from.
    """
    path = find_settings_file(flags, environment)
    from_file = read_settings_file(path) if path else {}
    values: dict[str, Any] = {QUERY.name: flags.get(QUERY.name), SETTINGS.name: path}
    for option in RUN_OPTIONS:
        values[option.name] = _resolve_one(option, flags, environment, from_file, path)
    if not _given(flags, environment, "api_key", "LLM_API_KEY"):
        values["api_key"] = _provider_key(values["llm_name"], environment) or values["api_key"]
    return values


def _resolve_one(
    option: Option,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    from_file: Mapping[str, Any],
    path: Path | None,
) -> Any:
    if flags.get(option.name) is not None:
        return converted(option, flags[option.name], f"--{option.name}")
    for variable in option.environment:
        if environment.get(variable):
            return converted(option, environment[variable], f"environment variable {variable}")
    if option.name in from_file:
        return converted(option, from_file[option.name], f"{path}, {option.name}")
    return option.default


def converted(option: Option, value: Any, source: str) -> Any:
    """The value as the option wants it. Raises UsageError, with where it came from."""
    try:
        return option.convert(value)
    except ValueError as error:
        shown = "the value" if option.name == "api_key" else repr(value)
        raise UsageError(f"{source}: {error}, not {shown}.") from error


def _given(flags: Mapping[str, Any], environment: Mapping[str, str], name: str, variable: str) -> bool:
    return flags.get(name) is not None or bool(environment.get(variable))


def _provider_key(model: str | None, environment: Mapping[str, str]) -> str | None:
    """The key of the model's provider; a name without a known provider is an OpenAI-compatible server's."""
    name = model or ""
    for prefix, variable in _PROVIDER_KEYS:
        if name.startswith(prefix):
            return environment.get(variable)
    return None if "/" in name else environment.get("OPENAI_API_KEY")
