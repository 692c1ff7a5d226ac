"""The settings of `%config SandboxMagics` and `ipython_config.py`: the defaults of cells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Dict, Enum, Float, Int, List, TraitError, TraitType, Unicode, Union, validate
from traitlets.config import Configurable

from llm_sandbox_nb.card.bundle import Caps
from llm_sandbox_nb.model.connection import typed_providers
from llm_sandbox_nb.model.model_names import typed_key_of
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.options.settings_files import find_settings_files
from llm_sandbox_nb.options.table import (
    FILE_SETTINGS,
    NOTEBOOK_SETTINGS,
    SAME_DEFAULT,
    TIME_FORMS,
    Convert,
    OneOf,
    Option,
    UsageError,
    count,
    count_or_all,
    json_object,
    number,
    number_or_default,
    option,
    positive_number,
    seconds,
    servers,
    texts,
    whole_number,
    yes_or_no,
)
from llm_sandbox_nb.options.values import (
    DEFAULT,
    Layer,
    Value,
    converted,
    environment_layer,
    file_layers,
    find_key,
    resolve_options,
    sandbox_limits,
    settings_text,
)
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.options import check_choice

_CHOICES = {
    option.name: option.convert.words for option in NOTEBOOK_SETTINGS if isinstance(option.convert, OneOf)
}
_OR_EMPTY = ("isolation", "profile", "network")
"""Settings with choices that may also be empty. For a mistyped value, `_checked_choice` suggests the nearest choice."""
_NUMBERS: dict[Convert, Any] = {
    whole_number: Int,
    count: Int,
    number: Float,
    number_or_default: Float,
    positive_number: Float,
    seconds: Float,
}


def _trait(option: Option) -> TraitType[Any, Any]:
    """Return the trait of a setting, with the default and the help text of its option."""
    default = option.default if option.notebook_default is SAME_DEFAULT else option.notebook_default
    text = option.help.replace(TIME_FORMS, ", in seconds")
    made: TraitType[Any, Any]
    if option.name in _CHOICES and option.name not in _OR_EMPTY:
        made = Enum(_CHOICES[option.name], default, help=text)
    elif option.convert in _NUMBERS:
        or_none = default is None or option.or_none
        made = _NUMBERS[option.convert](default, allow_none=or_none, help=text)
    elif option.convert is count_or_all:
        made = Union([Int(), Unicode()], default_value="", help=text)
    elif option.convert is yes_or_no:
        made = Bool(default, help=text)
    elif option.convert is texts:
        made = List(Unicode(), help=text)
    elif option.convert is servers:
        made = List(help=text)
    elif option.convert is json_object:
        made = Dict(help=text)
    else:
        made = Unicode(default or "", help=text)
    return made.tag(config=True)


_NUMERIC = [row.name for row in NOTEBOOK_SETTINGS if row.convert in (*_NUMBERS, count_or_all)]


class SandboxSettings(Configurable):
    """Defaults of cells, which a cell's options override. An empty text means the default of the sandbox or the model.

    Settings that `%config` does not set come from environment variables, the project's settings file or the user's.
    """

    locals().update({option.name: _trait(option) for option in NOTEBOOK_SETTINGS})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **options: Any) -> None:
        self._given: set[str] = set()
        """Settings that Python code or `%config` has set. `self.config` holds the settings of `ipython_config.py`."""
        self._sources: dict[str, str] = {}
        """Sources of the settings that were read from files and the environment."""
        self._layers: list[Layer] = []
        self._files: tuple[Path, ...] = ()
        self._reading = False
        super().__init__(**options)
        self.observe(self._note_given, names=_NAMES)
        self._given |= set(options) & set(_NAMES)
        # an invalid file is reported by the next cell that reads the settings
        with suppress(SandboxUsageError):
            self.read_files()

    @validate(*_OR_EMPTY)
    def _checked_choice(self, proposal: Mapping[str, Any]) -> str:
        name, value = proposal["trait"].name, str(proposal["value"])
        if value:
            try:
                check_choice(name, value, _CHOICES[name])
            except ValueError as error:
                raise TraitError(f"%config SandboxMagics.{name}: {error}") from None
        return value

    @validate(*_NUMERIC)
    def _checked_number(self, proposal: Mapping[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if value not in (None, ""):
            try:
                converted(option(name), value, f"%config SandboxMagics.{name}")
            except UsageError as error:
                raise TraitError(str(error)) from None  # `%config` restores the value only after a TraitError
        return value

    def _note_given(self, change: Mapping[str, Any]) -> None:
        if not self._reading:
            self._given.add(change["name"])

    def is_given(self, name: str) -> bool:
        """Return True if `%config`, `ipython_config.py` or Python code has set the value."""
        return name in self._given or any(
            name in section for owner, section in self.config.items() if owner in _OWNERS
        )

    def read_files(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read the environment and the settings files. Settings for which `is_given` is true stay as they are.

        Raises:
            SandboxUsageError: if a file or an environment variable is invalid, or the working folder is gone.
        """
        try:
            self._files = find_settings_files({}, environment)
            self._layers = [environment_layer(environment), *file_layers(self._files)]
            found = resolve_options(FILE_SETTINGS, self._layers)
        except UsageError as error:
            raise SandboxUsageError(str(error)) from error
        except FileNotFoundError as error:
            raise SandboxUsageError(
                "The working folder of this kernel is gone: choose one with %cd."
            ) from error
        self._reading = True
        try:
            for name in _NAMES:
                if not self.is_given(name):
                    value = found[name]
                    usual = value.source == DEFAULT or value.value is None
                    setattr(self, name, self.trait_defaults(name) if usual else value.value)
                    self._sources[name] = value.source
        except TraitError as error:
            raise SandboxUsageError(f"{value.source}: {error}") from error
        finally:
            self._reading = False

    def listed(self) -> str:
        """Return every setting with its value and source. Raises SandboxUsageError if a settings file is invalid."""
        self.read_files()
        found = resolve_options(FILE_SETTINGS, self._layers)
        for name in _NAMES:
            given = self.is_given(name)
            source = f"%config SandboxMagics.{name}" if given else self._sources[name]
            found[name] = Value(getattr(self, name), source)
        if typed := typed_providers():
            found["api_key"] = Value("typed", f"%sandbox key, for {', '.join(typed)}")
        return settings_text(found, self._files, os.environ)

    def api_key(
        self, model: str, variable: str | None, environment: Mapping[str, str] = os.environ
    ) -> str | None:
        """Return the key of `model` from the environment variable that the cell names.

        If the cell names no `variable`, search the same sources as the command line. Return None if a key was typed
        for the provider, because each request looks up the typed key.

        Raises:
            SandboxUsageError: if the variable is not set, or its name is invalid.
        """
        if not variable and typed_key_of(model, self.api_base):
            return None
        values = resolve_options([option("api_key"), option("api_key_env")], self._layers)
        values["model"] = Value(model, "")
        try:
            for name, source in ((variable, "--api-key-env"), (self.api_key_env, "api_key_env")):
                if name:
                    values["api_key_env"] = Value(converted(option("api_key_env"), name, source), source)
                    break
            key: str | None = find_key(values, environment).value
        except UsageError as error:
            raise SandboxUsageError(str(error)) from None
        return key

    def limits(self) -> Limits | None:
        """Return the requested resources; None if nothing was set."""
        return sandbox_limits(
            {name: getattr(self, name) for name in ("memory_mb", "pids", "cpus", "disk_mb", "files")}
        )

    def caps(self) -> Caps:
        """Return the size limits of the saved card."""
        return Caps(artifact=self.embed_file_bytes, run=self.embed_run_bytes)


_NAMES = sorted(SandboxSettings.class_own_traits(config=True))
_OWNERS = ("SandboxMagics", "SandboxSettings")
