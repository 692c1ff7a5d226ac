"""Table of all options, with their names, converters, help texts, defaults, environment variables and targets.

The flags of `run` and `benchmark run`, the options of `%%sandbox`, the settings of `%config SandboxMagics`, the keys
of settings files and the reference pages are made from this table. A new option needs one row here, and code that uses
the value. A row with `sets="NAME"`, a new argument of `solve`, also needs a field in `agent/run_options.py`. Options of
cells alone are in `notebook/magic_line.py`. In a benchmark, all results in one folder have the same value of an option
of the groups `model`, `limits` and `sandbox`, unless `NOT_COMPARED` in `benchmark/options.py` names it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.isolations import (
    ISOLATION_VARIABLE,
    ISOLATIONS,
    NETWORKS,
    PROFILES,
    isolation_choices,
)
from llm_sandbox_nb.sandbox.limits import DEFAULT_COMMAND_TIMEOUT
from llm_sandbox_nb.trajectory.run_folder import RUNS

Convert = Callable[[Any], Any]


class UsageError(LLMSandboxError):
    """Error for an invalid command line, settings file or cell. The message is one sentence with the remedy."""


_SECONDS_PER_UNIT = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def text(value: Any) -> str:
    """Convert a value to text, because a settings file may hold `424242` or `True` without quotes."""
    if isinstance(value, Mapping | list):
        raise ValueError("must be text")
    return str(value)


def whole_number(value: Any) -> int:
    """Return a whole number of at least 1."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("must be a whole number of at least 1")
    return number


def count(value: Any) -> int:
    """Return a whole number of at least 0."""
    if str(value).strip() == "0":
        return 0
    try:
        return whole_number(value)
    except ValueError:
        raise ValueError("must be a whole number of at least 0") from None


def count_or_all(value: Any) -> int | str:
    """Return a whole number of at least 0, or `all`."""
    if str(value).strip().lower() == "all":
        return "all"
    try:
        return count(value)
    except ValueError:
        raise ValueError("must be a whole number of at least 0, or all") from None


def number(value: Any) -> float:
    """Return a number of at least 0."""
    try:
        result = float(str(value))
    except ValueError:
        result = math.nan
    if not 0 <= result < math.inf:
        raise ValueError("must be a number of at least 0")
    return result


def positive_number(value: Any) -> float:
    """Return a number above 0."""
    try:
        result = number(value)
    except ValueError:
        result = 0.0
    if not result:
        raise ValueError("must be a number above 0")
    return result


def number_or_default(value: Any) -> float | None:
    """Return a number of at least 0, or None for `default`, which leaves the choice to the provider."""
    return None if str(value).lower() == "default" else number(value)


def seconds(value: Any) -> float:
    """Convert a time such as `90`, `90s`, `15m` or `1.5h` to seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return positive_number(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", str(value).strip().lower())
    if not match or not (result := float(match[1]) * _SECONDS_PER_UNIT[match[2]]):
        raise ValueError("must be a time such as 90, 90s, 15m or 2h")
    return result


def yes_or_no(value: Any) -> bool:
    """Convert a word such as `yes`, `on` or `false` to True or False."""
    word = str(value).lower()
    if word not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        raise ValueError("must be true or false")
    return word in ("true", "yes", "on", "1")


def json_object(value: Any) -> dict[str, Any]:
    """Parse a JSON object or a Python dictionary literal; the texts "true" and "false" inside become booleans."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                value = None
    try:
        converted = _truth_values(value)
        # A Python literal or a TOML file may have a value that JSON lacks.
        json.dumps(converted, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        converted = None
    if not isinstance(converted, dict):
        raise ValueError("""must be a JSON object like '{"chat_template_kwargs": {"thinking": true}}'""")
    return converted


def _truth_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _truth_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_truth_values(item) for item in value]
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


class OneOf:
    """Converter of an option that accepts only a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: Any) -> str:
        if str(value) not in self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}")
        return str(value)


def variable(value: Any) -> str:
    """Return the name of an environment variable. The error does not show the value: a person may have given a key."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,80}", str(value)):
        raise ValueError("must be the name of an environment variable, not the key itself")
    return str(value)


def texts(value: Any) -> list[str]:
    """Return a list of texts; a single text becomes a list."""
    return [text(item) for item in (value if isinstance(value, list) else [value])]


def servers(value: Any) -> list[Any]:
    """Return a list of MCP servers: names, files or mappings; a single value becomes a list."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | Mapping) for item in found):
        raise ValueError("must be names of MCP servers, files with them, or tables such as [mcp.NAME]")
    return found


class _SameDefault:
    def __repr__(self) -> str:
        return "the default of the command line"


SAME_DEFAULT = _SameDefault()


@dataclass(frozen=True)
class Option:
    """Option of commands, cells and settings files. `name` has underscores; the flag may be written with dashes too."""

    name: str
    help: str
    convert: Convert = text
    default: Any = None
    environment: tuple[str, ...] = ()
    metavar: str = "TEXT"
    in_file: bool = True
    """True if a settings file may hold the option."""
    switch: bool = False
    """True if the flag without a value means yes."""
    many: bool = False
    """True if the flag may be repeated. The value in a settings file is then a list."""
    aliases: tuple[str, ...] = ()
    """Other names of the flag and of the key in a settings file."""
    short: str = ""
    """Letter of the short flag of the command `run`, as in the paper's package."""
    sets: str = ""
    """Target of the value. A name without a dot is an argument of `solve`, such as a field of `RunOptions`. A name with
    a dot is a field of an argument: `limits.NAME`, `settings.NAME`, `retries.NAME`, or `sandbox.NAME` for
    `sandbox_options`."""
    in_notebook: bool = True
    """True if `%config SandboxMagics` has the setting."""
    notebook_default: Any = SAME_DEFAULT
    """Default in a notebook, if it differs from `default`."""
    or_none: bool = False
    """True if the setting of a notebook may be None although `default` is not None."""


TIME_FORMS = ": seconds, or 90s, 15m, 2h"
"""End of the help text of a time. The help of `%config` replaces this end, because `%config` accepts only seconds."""
QUERY = Option("query", "the task, taken literally", in_file=False, short="q")
SETTINGS = Option(
    "settings", "settings file (TOML, or YAML)", environment=("LLM_SANDBOX_SETTINGS", "LLM_IN_SANDBOX_CONFIG"),
    metavar="FILE", in_file=False,
)  # fmt: skip

MODEL_OPTIONS = (
    Option("model", "model, e.g. openai/gpt-5, anthropic/..., your server's name for it, local/NAME (on this machine), "
           "scripted/NAME",
           environment=("LLM_SANDBOX_MODEL", "LLM_NAME"), metavar="NAME", aliases=("llm_name",), short="m",
           sets="model"),
    Option("api_base", "address of an OpenAI-compatible server, e.g. http://localhost:8000/v1",
           environment=("LLM_BASE_URL",), metavar="URL", aliases=("llm_base_url",), sets="api_base"),
    Option("api_key", "key of the model's provider; better in the environment, where nobody else sees it",
           environment=("LLM_API_KEY",), metavar="KEY", short="a", sets="api_key", in_notebook=False),
    Option("api_key_env", "environment variable that holds the model's key", variable, metavar="VARIABLE"),
    # 1.0 as in the paper. A notebook leaves the choice to the provider, because some models refuse a temperature.
    Option("temperature", "sampling temperature, or `default` for the provider's own", number_or_default, 1.0,
           ("LLM_TEMPERATURE",), "NUMBER", short="t", sets="settings.temperature", notebook_default=None),
    Option("top_p", "nucleus sampling: share of the probability to sample from", number, metavar="NUMBER",
           sets="settings.top_p"),
    Option("top_k", "sample from the k likeliest tokens", whole_number, metavar="N", sets="settings.top_k"),
    Option("min_p", "minimum probability relative to the likeliest token", number, metavar="NUMBER",
           sets="settings.min_p"),
    Option("repetition_penalty", "penalty on repeated tokens", number, metavar="NUMBER",
           sets="settings.repetition_penalty"),
    # In a notebook `model/model_list.py` chooses the token limit of a reply.
    Option("max_tokens_per_call", "maximum tokens of a reply", whole_number, 65536, metavar="N",
           sets="settings.max_tokens", notebook_default=None),
    Option("model_timeout", f"longest silence of the model's server{TIME_FORMS}", seconds, 1200.0, metavar="TIME",
           sets="settings.timeout"),
    Option("model_wait", f"longest wait for a server that loads its model or restarts{TIME_FORMS}", seconds, 600.0,
           metavar="TIME", sets="retries.loading_wait"),
    Option("extra_body", "further fields of each request, a JSON object", json_object, metavar="JSON", short="e",
           sets="settings.extra_body"),
    Option("tool_calls", "form of the model's calls: native, text, or auto (text if native calls do not work)",
           OneOf("auto", "native", "text"), "auto", metavar="KIND", sets="tool_calls"),
)  # fmt: skip
LIMIT_OPTIONS = (
    Option("steps", "maximum number of steps (replies of the model)", whole_number, 100, metavar="N",
           aliases=("max_steps",), sets="limits.steps"),
    Option("tokens", "maximum tokens of the conversation: one request with its reply", whole_number, 65536,
           metavar="N", aliases=("max_token_limit",), sets="limits.tokens", or_none=True),
    Option("total_tokens", "maximum tokens of all requests and replies together, as card and terminal count them",
           whole_number, metavar="N", sets="limits.total_tokens"),
    Option("budget", "maximum cost of the run, in US dollars", positive_number, metavar="DOLLARS", sets="limits.cost"),
    Option("time", f"maximum time of the run{TIME_FORMS}", seconds, metavar="TIME", sets="limits.time"),
    # The default is in `sandbox/limits.py`, because `Sandbox.run` has the same default.
    Option("command_timeout", f"default timeout of a command, where the model sets none{TIME_FORMS}", seconds,
           DEFAULT_COMMAND_TIMEOUT, metavar="TIME", sets="command_timeout"),
    Option("same_failures", "the run ends when the same call has failed this many times in a row; 0: never", count, 8,
           metavar="N", sets="same_failures"),
    Option("nudges", "number of replies in a row without a call that are answered with a request for a call; one more "
           "such reply ends the run; all: only a limit ends the run (default: 2, in a benchmark all)", count_or_all,
           metavar="N", sets="nudges"),
)  # fmt: skip
CONTEXT_OPTIONS = (
    Option("context", "form of a conversation that fills three quarters of the model's context: mask (one line for an "
           "old output), summary (the model summarizes old steps) or full",
           OneOf("mask", "summary", "full"), "mask", metavar="KIND", sets="context"),
)  # fmt: skip
SANDBOX_OPTIONS = (
    Option("isolation", f"{', '.join(isolation_choices())} (process isolates nothing)",
           OneOf(*isolation_choices()), "auto", (ISOLATION_VARIABLE,), "KIND", sets="isolation"),
    # The site of a Jupyter server may choose another profile, so the setting of a notebook is empty by default.
    Option("profile", "standard (root inside, few capabilities) or strict (plain user, no capabilities, no network)",
           OneOf(*PROFILES), "standard", ("LLM_SANDBOX_PROFILE",), "NAME", sets="profile", notebook_default=""),
    Option("image", f"container image ({', '.join(row.name for row in ISOLATIONS.values() if row.takes_images)})",
           environment=("LLM_SANDBOX_IMAGE",), metavar="IMAGE", aliases=("docker_image",), short="d", sets="image"),
    Option("network", "none, allow (the hosts of --allow only), public (the internet, no private address) or open (not "
           "safe); by default, the profile decides", OneOf(*NETWORKS), metavar="KIND", sets="network"),
    Option("allow", "hosts that the sandbox may reach, such as pypi,github.com:443,*.example.org; may be repeated",
           texts, [], metavar="HOSTS", many=True, sets="sandbox.allow"),
    Option("secret", "environment variable whose value is put, outside the sandbox, into requests to the named hosts "
           "only; may be repeated", texts, [], metavar="NAME=HOSTS", many=True, sets="sandbox.secrets"),
    Option("ca_bundle", "PEM file of your site's certificate authorities", metavar="FILE", sets="sandbox.ca_bundle"),
    Option("index_url", "your site's Python package index, for pip inside", metavar="URL", sets="sandbox.index_url"),
    Option("proxy", "your site's HTTP proxy, for programs inside", metavar="URL", sets="sandbox.proxy"),
)  # fmt: skip
RESOURCE_OPTIONS = (
    Option("memory_mb", "memory of a sandbox in MB", whole_number, metavar="N"),
    Option("cpus", "processors of a sandbox", positive_number, metavar="NUMBER"),
    Option("pids", "maximum number of processes of a sandbox", whole_number, metavar="N"),
    Option("disk_mb", "maximum size of all files of a sandbox together, in MB", whole_number, metavar="N"),
    Option("files", "maximum number of files of a sandbox", whole_number, metavar="N"),
)
FILE_OPTIONS = (
    Option("input_dir", "file or folder whose content the model finds in its input folder", metavar="PATH",
           short="i", in_notebook=False),
    Option("output_dir", "folder in which the run's folder is made", default=RUNS, metavar="FOLDER",
           short="o", sets="output_dir"),
    Option("prompt_config", "YAML file with system_prompt and instance_prompt", metavar="FILE", short="p",
           sets="prompt_config"),
    Option("prompts", "own, or original: prompts of llm-in-sandbox 0.2.0, read from that package (extra `original`)",
           OneOf("own", "original"), "own", metavar="WHOSE", sets="prompts"),
    Option("save_litellm_response", "also save each request and reply as a separate JSON file", yes_or_no, False,
           metavar="BOOL", switch=True, in_notebook=False),
)  # fmt: skip
PAUSE_OPTIONS = (
    Option("step", "pause before every tool call", yes_or_no, False, metavar="BOOL", switch=True, sets="step",
           in_notebook=False),
    Option("break", "pause at calls such as \"tool == 'execute_bash' and 'rm ' in command\"; may be repeated",
           texts, [], metavar="EXPR", many=True, sets="breakpoints", in_notebook=False),
    Option("break_when", "pause when this function returns true: FILE.py:NAME; may be repeated", texts, [],
           metavar="FILE:NAME", many=True, in_notebook=False),
    Option("approve", "ask before every call, only before commands (edits), or never (auto)",
           OneOf("ask", "edits", "auto"), "auto", metavar="KIND", sets="approve", in_notebook=False),
    Option("on_pause", "at a pause: ask here, stop the run, or continue", OneOf("ask", "stop", "continue"), "ask",
           metavar="KIND", in_notebook=False),
)  # fmt: skip
CHECK_OPTIONS = (
    Option("check", "command that checks the result after the model has submitted; exit code 0 passes; the model can "
           "neither see nor change the command", metavar="COMMAND", sets="check"),
    Option("check_files", "file, or folder with files, that only the check gets; the command of the check runs in the "
           "folder of these files; may be repeated", texts, [], metavar="PATH", many=True, sets="check_files"),
    Option("check_tries", "how often the result is checked: after each failed check except the last, the model reads "
           "the output and continues", whole_number, 1, metavar="N", sets="check_tries"),
    Option("check_timeout", f"maximum time of a check{TIME_FORMS}", seconds, 600.0, metavar="TIME",
           sets="check_timeout"),
)  # fmt: skip
TOOL_OPTIONS = (
    Option("mcp", "MCP server whose tools the model can call too: a name in .mcp.json, a file, FILE#NAME, NAME=COMMAND "
           "or NAME=URL; may be repeated", servers, [], metavar="SERVER", many=True, sets="mcp"),
    Option("mcp_allow", "MCP server, or its tool SERVER__TOOL, whose calls need no approval; may be repeated", texts,
           [], metavar="NAME", many=True, sets="mcp_allow"),
    Option("tool", "your function that the model can call too: FILE.py:NAME; may be repeated", texts, [],
           metavar="FILE:NAME", many=True, in_notebook=False),
    Option("doubt", "your rule that returns reasons why a result may be wrong: FILE.py:NAME; may be repeated", texts,
           [], metavar="FILE:NAME", many=True, in_notebook=False),
)  # fmt: skip
GROUPS = {
    "model": MODEL_OPTIONS,
    "limits": LIMIT_OPTIONS,
    "context": CONTEXT_OPTIONS,
    "sandbox": SANDBOX_OPTIONS,
    "resources": RESOURCE_OPTIONS,
    "files": FILE_OPTIONS,
    "tools": TOOL_OPTIONS,
    "checks": CHECK_OPTIONS,
    "pauses": PAUSE_OPTIONS,
}
RUN_OPTIONS = tuple(option for group in GROUPS.values() for option in group)
NOTEBOOK_OPTIONS = (
    Option("model_settings", "temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, timeout, extra_body",
           json_object, {}),
    Option("use_server", "let the Jupyter server own the sandbox, if the server has the extension; otherwise the "
           "kernel owns the sandbox", yes_or_no, True),
    Option("prepared_sandboxes", "number of sandboxes to start in advance while the notebook is idle, so that a cell "
           "with a new sandbox begins at once; 0: none", count, 1, environment=("LLM_SANDBOX_PREPARED",)),
    Option("prepared_time", f"time after which a prepared sandbox that no cell has used ends{TIME_FORMS}", seconds,
           1800.0),
    Option("show", "show the live card of `await solve(...)` in a notebook", yes_or_no, True),
    Option("live_panel", "show a live run as a widget where no Jupyter server with the extension can show it",
           OneOf("auto", "always", "never"), "auto"),
    Option("update_interval", "seconds between updates of a cell's output", number, 0.25),
    Option("dataframe_format", "file format of a DataFrame given with -i; every sandbox can read csv",
           OneOf("csv", "parquet"), "csv"),
    Option("embed_file_bytes", "maximum size of a file saved in the notebook, in bytes", whole_number, 1_000_000),
    Option("embed_run_bytes", "maximum size of all saved files of a run, in bytes", whole_number, 10_000_000),
)  # fmt: skip
"""Settings of a notebook that the command line lacks: `%config SandboxMagics` and settings files have them."""
FILE_SETTINGS = tuple(option for option in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS) if option.in_file)
NOTEBOOK_SETTINGS = tuple(option for option in FILE_SETTINGS if option.in_notebook)


def option(name: str) -> Option:
    """Return the option with this name or alias."""
    return next(
        option for option in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS) if name in (option.name, *option.aliases)
    )
