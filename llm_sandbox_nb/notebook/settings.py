"""The settings of `%config SandboxMagics` and `ipython_config.py`: the defaults of cells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Int, List, TraitError, Unicode, Union, validate
from traitlets.config import Configurable

from llm_sandbox_nb.card.bundle import Caps
from llm_sandbox_nb.model.connection import typed_providers
from llm_sandbox_nb.model.model_names import typed_key_of
from llm_sandbox_nb.notebook.errors import SandboxUsageError
from llm_sandbox_nb.options.settings_files import find_settings_files
from llm_sandbox_nb.options.table import FILE_SETTINGS, UsageError, option
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
from llm_sandbox_nb.sandbox.contract import Limits
from llm_sandbox_nb.sandbox.isolations import NETWORKS, PROFILES, isolation_choices
from llm_sandbox_nb.sandbox.options import check_choice

_CHOICES = {"isolation": isolation_choices(), "profile": PROFILES, "network": NETWORKS}


def _help(name: str) -> str:
    """The help text of an option that the command line and settings files have too."""
    return option(name).help


class SandboxSettings(Configurable):
    """Defaults; options of a cell come first. An empty text means the default of the sandbox or the model.

    What `%config` does not say comes from the environment, the project's settings file or the user's: `read_files`.
    """

    model = Unicode(help=_help("model")).tag(config=True)
    api_base = Unicode(help=_help("api_base")).tag(config=True)
    api_key_env = Unicode(help=_help("api_key_env")).tag(config=True)
    temperature = Float(None, allow_none=True, help=_help("temperature")).tag(config=True)
    top_p = Float(None, allow_none=True, help=_help("top_p")).tag(config=True)
    top_k = Int(None, allow_none=True, help=_help("top_k")).tag(config=True)
    min_p = Float(None, allow_none=True, help=_help("min_p")).tag(config=True)
    repetition_penalty = Float(None, allow_none=True, help=_help("repetition_penalty")).tag(config=True)
    max_tokens_per_call = Int(None, allow_none=True, help=_help("max_tokens_per_call")).tag(config=True)
    model_timeout = Float(1200.0, help="longest silence of the model's server in seconds").tag(config=True)
    model_wait = Float(
        600.0, help="seconds for which a server is waited for that loads its model or is started again"
    ).tag(config=True)
    extra_body = Dict(help=_help("extra_body")).tag(config=True)
    tool_calls: Any = Enum(["auto", "native", "text"], "auto", help=_help("tool_calls")).tag(config=True)
    model_settings = Dict(help=_help("model_settings")).tag(config=True)
    prompt_config = Unicode(help=_help("prompt_config")).tag(config=True)
    prompts: Any = Enum(["own", "original"], "own", help=_help("prompts")).tag(config=True)

    isolation = Unicode("auto", help=_help("isolation")).tag(config=True)
    profile = Unicode(help=_help("profile")).tag(config=True)
    image = Unicode(help=_help("image")).tag(config=True)
    network = Unicode(help=_help("network")).tag(config=True)
    allow: Any = List(Unicode(), help=_help("allow")).tag(config=True)
    secret: Any = List(Unicode(), help=_help("secret")).tag(config=True)
    memory_mb = Int(None, allow_none=True, help=_help("memory_mb")).tag(config=True)
    pids = Int(None, allow_none=True, help=_help("pids")).tag(config=True)
    disk_mb = Int(None, allow_none=True, help=_help("disk_mb")).tag(config=True)
    files = Int(None, allow_none=True, help=_help("files")).tag(config=True)
    cpus = Float(None, allow_none=True, help=_help("cpus")).tag(config=True)
    ca_bundle = Unicode(help=_help("ca_bundle")).tag(config=True)
    index_url = Unicode(help=_help("index_url")).tag(config=True)
    proxy = Unicode(help=_help("proxy")).tag(config=True)
    use_server = Bool(True, help=_help("use_server")).tag(config=True)

    steps = Int(100, help=_help("steps")).tag(config=True)
    tokens = Int(65_536, allow_none=True, help=_help("tokens")).tag(config=True)
    total_tokens = Int(None, allow_none=True, help=_help("total_tokens")).tag(config=True)
    budget = Float(None, allow_none=True, help=_help("budget")).tag(config=True)
    time = Float(None, allow_none=True, help="longest time of the run in seconds").tag(config=True)
    command_timeout = Float(
        120.0, help="time-out in seconds of a command for which the model names none"
    ).tag(config=True)

    same_failures = Int(8, help=_help("same_failures")).tag(config=True)
    nudges: Any = Union([Int(), Unicode()], default_value="", help=_help("nudges")).tag(config=True)
    context: Any = Enum(["mask", "summary", "full"], "mask", help=_help("context")).tag(config=True)

    check = Unicode(help=_help("check")).tag(config=True)
    check_files = List(Unicode(), help=_help("check_files")).tag(config=True)
    check_tries = Int(1, help=_help("check_tries")).tag(config=True)
    check_timeout = Float(600.0, help="longest time of a check in seconds").tag(config=True)

    output_dir = Unicode("sandbox-runs", help=_help("output_dir")).tag(config=True)
    dataframe_format: Any = Enum(["csv", "parquet"], "csv", help=_help("dataframe_format")).tag(config=True)
    embed_file_bytes = Int(Caps.artifact, help=_help("embed_file_bytes")).tag(config=True)
    embed_run_bytes = Int(Caps.run, help=_help("embed_run_bytes")).tag(config=True)
    show = Bool(True, help=_help("show")).tag(config=True)
    live_panel: Any = Enum(["auto", "always", "never"], "auto", help=_help("live_panel")).tag(config=True)
    update_interval = Float(0.25, help=_help("update_interval")).tag(config=True)

    def __init__(self, **options: Any) -> None:
        self._given: set[str] = set()
        """Settings that were given here; those of `%config` and `ipython_config.py` are in `self.config` too."""
        self._sources: dict[str, str] = {}
        """Where the other settings come from."""
        self._layers: list[Layer] = []
        self._files: tuple[Path, ...] = ()
        self._reading = False
        super().__init__(**options)
        self.observe(self._note_given, names=_NAMES)
        self._given |= set(options) & set(_NAMES)
        with suppress(SandboxUsageError):  # a wrong file is an error of the cell that uses it
            self.read_files()

    @validate("isolation", "profile", "network")
    def _checked_choice(self, proposal: Mapping[str, Any]) -> str:
        name, value = proposal["trait"].name, str(proposal["value"])
        if value:
            try:
                check_choice(name, value, _CHOICES[name])
            except ValueError as error:
                raise SandboxUsageError(f"%config SandboxMagics.{name}: {error}") from None
        return value

    def _note_given(self, change: Mapping[str, Any]) -> None:
        if not self._reading:
            self._given.add(change["name"])

    def is_given(self, name: str) -> bool:
        """Whether `%config`, `ipython_config.py` or Python code has set it."""
        return name in self._given or any(
            name in section for owner, section in self.config.items() if owner in _OWNERS
        )

    def read_files(self, environment: Mapping[str, str] = os.environ) -> None:
        """Take what environment and settings files say now about the settings that were not given here.

        Raises:
            SandboxUsageError: a file or a variable cannot be understood; nothing was changed.
        """
        try:
            self._files = find_settings_files({}, environment)
            self._layers = [environment_layer(environment), *file_layers(self._files)]
            found = resolve_options(FILE_SETTINGS, self._layers)
        except UsageError as error:
            raise SandboxUsageError(str(error)) from error
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
        """Every setting with its value and its source. Raises SandboxUsageError when a file cannot be understood."""
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
        """The key of `model`: of the variable that a cell names, else as on the command line.

        None also where a key was typed for its provider: each request looks that up.

        Raises:
            SandboxUsageError: the variable is not set, or is no name of a variable.
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
        """The resources asked for; None when nothing was set."""
        return sandbox_limits(
            {name: getattr(self, name) for name in ("memory_mb", "pids", "cpus", "disk_mb", "files")}
        )

    def caps(self) -> Caps:
        """The bounds of the saved card."""
        return Caps(artifact=self.embed_file_bytes, run=self.embed_run_bytes)


_NAMES = sorted(SandboxSettings.class_own_traits(config=True))
_OWNERS = ("SandboxMagics", "SandboxSettings")
