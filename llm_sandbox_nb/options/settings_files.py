"""Settings files: their places and their content.

The project and the user may each have a file. If a flag or an environment variable names a file, this file is
used instead of both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_sandbox_nb.options.parser import did_you_mean
from llm_sandbox_nb.options.table import FILE_SETTINGS, RUN_OPTIONS, SETTINGS, UsageError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.windows import is_windows

PROJECT_FILE = "llm-sandbox-nb.toml"
_OLD_PROJECT_FILES = ("llm-sandbox-nb.yaml", "llm-in-sandbox.yaml", "llm_in_sandbox.yaml")
MODEL_SETTINGS = "model_settings"
_OPTION_OF_FIELD = {
    option.sets.removeprefix("settings."): option.name
    for option in RUN_OPTIONS
    if option.sets.startswith("settings.")
}
"""Options by the names that they have in `model_settings`."""
_OLD_USER_FILES = (".llm-in-sandbox/config.yaml", ".llm-in-sandbox.yaml")


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's settings file: by default `~/.config/llm-sandbox-nb/settings.toml`."""
    folder = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "llm-sandbox-nb" / "settings.toml"


def find_settings_files(flags: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the settings files by precedence: the named file, or the project's and then the user's if none is named.

    Raises:
        UsageError: if the named file does not exist.
    """
    variable = next((name for name in SETTINGS.environment if environment.get(name)), "")
    named, source = environment.get(variable, ""), variable
    if flags.get(SETTINGS.name) is not None:
        named, source = str(flags[SETTINGS.name]), f"--{SETTINGS.name}"
    if named:
        path = expanded(named)
        if not path.is_file():
            raise UsageError(f"{source}: the settings file {named} does not exist; check the path.")
        return (path,)
    project = next(_project_files(Path.cwd()), None)
    own = user_file(environment)
    own_files = [own, own.with_suffix(".yaml"), *(Path.home() / name for name in _OLD_USER_FILES)]
    user = next(filter(Path.is_file, own_files), None)
    return tuple(dict.fromkeys(path for path in (project, user) if path is not None))


def _project_files(folder: Path) -> Iterator[Path]:
    """Yield settings files in `folder`, then in the folders above it up to the home folder.

    A file in a parent folder is used only if the user owns it, because anyone can write a file into `/tmp`.
    """
    yield from (folder / name for name in (PROJECT_FILE, *_OLD_PROJECT_FILES) if (folder / name).is_file())
    home = Path.home()
    for above in () if folder == home else folder.parents:
        path = above / PROJECT_FILE
        if path.is_file() and (is_windows() or path.stat().st_uid == os.getuid()):
            yield path
        if above == home:
            return


def read_settings_file(path: Path) -> dict[str, tuple[Any, str]]:
    """Return the values of a settings file by option name, each with its key in the file.

    The fields of a table `model_settings` are values of the options that set the same fields.

    Raises:
        UsageError: if the file is not valid TOML or YAML, not a mapping, or has a key that is not an option.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"The settings file {path} is not UTF-8 text: save it as UTF-8.") from error
    except OSError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error.strerror or error}.") from error
    loaded = _toml(path, content) if path.suffix == ".toml" else _yaml(path, content)
    names = {name: setting.name for setting in FILE_SETTINGS for name in (setting.name, *setting.aliases)}
    for key in loaded:
        if key not in names:
            raise UsageError(
                f"The settings file {path} has an unknown key {key!r}{did_you_mean(str(key), list(names))}"
            )
    found = {names[key]: (value, str(key)) for key, value in loaded.items() if value is not None}
    if isinstance(sampling := loaded.get(MODEL_SETTINGS), dict):
        del found[MODEL_SETTINGS]
        for field, value in sampling.items():
            if field not in _OPTION_OF_FIELD:
                near = did_you_mean(str(field), list(_OPTION_OF_FIELD))
                raise UsageError(
                    f"The settings file {path} has an unknown key {f'{MODEL_SETTINGS}.{field}'!r}{near}"
                )
            found.setdefault(_OPTION_OF_FIELD[field], (value, f"{MODEL_SETTINGS}.{field}"))
    return found


def _toml(path: Path, content: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The settings file {path} is not valid TOML: {error}.") from error


def _yaml(path: Path, content: str) -> dict[Any, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = f" near line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
        raise UsageError(f"The settings file {path} is not valid YAML{where}; correct it there.") from error
    if loaded is not None and not isinstance(loaded, dict):
        raise UsageError(f"The settings file {path} must hold lines like `model: openai/gpt-5`.")
    return loaded or {}
