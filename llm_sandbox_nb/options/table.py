"""Options: one table of names, kinds, help texts, defaults and environment variables.

`run` and `benchmark run` take them on the command line; `%%sandbox` and `%config SandboxMagics` take those that a cell
needs, with the same names and help texts. A settings file may hold all of them.
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
from llm_sandbox_nb.sandbox.isolations import ISOLATION_VARIABLE, NETWORKS, PROFILES, isolation_choices

Convert = Callable[[Any], Any]


class UsageError(LLMSandboxError):
    """The command line, a settings file or a cell cannot be understood. The message is one sentence on what to do."""


_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def text(value: Any) -> str:
    """Text as it stands: `424242` and `True` are text too."""
    if isinstance(value, Mapping | list):
        raise ValueError("must be text")
    return str(value)


def whole_number(value: Any) -> int:
    """A whole number of at least 1."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("must be a whole number of at least 1")
    return number


def count(value: Any) -> int:
    """A whole number of at least 0."""
    if str(value).strip() == "0":
        return 0
    try:
        return whole_number(value)
    except ValueError:
        raise ValueError("must be a whole number of at least 0") from None


def count_or_all(value: Any) -> int | str:
    """A whole number of at least 0, or `all`."""
    if str(value).strip().lower() == "all":
        return "all"
    try:
        return count(value)
    except ValueError:
        raise ValueError("must be a whole number of at least 0, or all") from None


def number(value: Any) -> float:
    """A number of at least 0."""
    try:
        result = float(str(value))
    except ValueError:
        result = math.nan
    if not 0 <= result < math.inf:
        raise ValueError("must be a number of at least 0")
    return result


def positive_number(value: Any) -> float:
    """A number above 0."""
    try:
        result = number(value)
    except ValueError:
        result = 0.0
    if not result:
        raise ValueError("must be a number above 0")
    return result


def number_or_default(value: Any) -> float | None:
    """A number of at least 0; `default` leaves the choice to the provider."""
    return None if str(value).lower() == "default" else number(value)


def seconds(value: Any) -> float:
    """A time: `90`, `90s`, `15m` or `1.5h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", str(value).strip().lower())
    if not match or not (result := float(match[1]) * _UNITS[match[2]]):
        raise ValueError("must be a time such as 90, 90s, 15m or 2h")
    return result


def yes_or_no(value: Any) -> bool:
    """A truth value as people and YAML write them."""
    word = str(value).lower()
    if word not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        raise ValueError("must be true or false")
    return word in ("true", "yes", "on", "1")


def json_object(value: Any) -> dict[str, Any]:
    """A JSON object (or a Python dictionary as text); the words true and false inside become truth values."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                value = None
    if not isinstance(value, dict):
        raise ValueError("""must be a JSON object like '{"chat_template_kwargs": {"thinking": true}}'""")
    converted: dict[str, Any] = _truth_values(value)
    return converted


def _truth_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _truth_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_truth_values(item) for item in value]
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def one_of(*words: str) -> Convert:
    """A converter for one of a few words."""

    def convert(value: Any) -> str:
        if str(value) not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return convert


def variable(value: Any) -> str:
    """The name of an environment variable. The error never shows the value, which may be the key itself."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,80}", str(value)):
        raise ValueError("takes the name of an environment variable, not the key itself")
    return str(value)


def texts(value: Any) -> list[str]:
    """A list of texts; one text is a list too."""
    return [text(one) for one in (value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class Option:
    """One option. `name` has underscores; the flag may be written with dashes too."""

    name: str
    help: str
    convert: Convert = text
    default: Any = None
    environment: tuple[str, ...] = ()
    metavar: str = "TEXT"
    in_file: bool = True
    """Whether a settings file may hold it."""
    switch: bool = False
    """Whether the flag alone means yes."""
    many: bool = False
    """Whether it may be given several times; a settings file has a list."""
    aliases: tuple[str, ...] = ()
    """Other names of the flag and of the key in a settings file."""
    short: str = ""
    """The letter of the short flag of `run`, as in the paper's package."""


QUERY = Option("query", "the task, taken literally", in_file=False, short="q")
SETTINGS = Option(
    "settings", "settings file (TOML; YAML as before)", environment=("LLM_SANDBOX_SETTINGS", "LLM_IN_SANDBOX_CONFIG"),
    metavar="FILE", in_file=False,
)  # fmt: skip

MODEL_OPTIONS = (
    Option("model", "model, e.g. openai/gpt-5, anthropic/..., your server's name for it, local/NAME (on this machine), "
           "scripted/NAME",
           environment=("LLM_SANDBOX_MODEL", "LLM_NAME"), metavar="NAME", aliases=("llm_name",), short="m"),
    Option("api_base", "address of an OpenAI-compatible server, e.g. http://localhost:8000/v1",
           environment=("LLM_BASE_URL",), metavar="URL", aliases=("llm_base_url",)),
    Option("api_key", "key of the model's provider; better in the environment, where nobody else sees it",
           environment=("LLM_API_KEY",), metavar="KEY",
           short="a"),
    Option("api_key_env", "environment variable that holds the model's key", variable, metavar="VARIABLE"),
    Option("temperature", "sampling temperature, or `default` for the provider's own", number_or_default, 1.0,
           ("LLM_TEMPERATURE",), "NUMBER", short="t"),
    Option("top_p", "nucleus sampling", number, metavar="NUMBER"),
    Option("top_k", "sample from the k likeliest tokens", whole_number, metavar="N"),
    Option("min_p", "least probability relative to the likeliest token", number, metavar="NUMBER"),
    Option("repetition_penalty", "penalty on repeated tokens", number, metavar="NUMBER"),
    Option("max_tokens_per_call", "most tokens of one reply", whole_number, 65536, metavar="N"),
    Option("model_timeout", "longest silence of the model's server: seconds, or 90s, 15m, 2h", seconds, 1200.0,
           metavar="TIME"),
    Option("model_wait", "longest wait for a server that loads its model or is started again: seconds, or 90s, 15m, 2h",
           seconds, 600.0, metavar="TIME"),
    Option("extra_body", "further fields of each request, a JSON object", json_object, metavar="JSON", short="e"),
    Option("tool_calls", "how the model makes calls: native, text, or auto (native, and text where that does not work)",
           one_of("auto", "native", "text"), "auto", metavar="KIND"),
)  # fmt: skip
LIMIT_OPTIONS = (
    Option("steps", "most steps, which are replies of the model", whole_number, 100, metavar="N",
           aliases=("max_steps",)),
    Option("tokens", "most tokens of the conversation, which is one request with its reply", whole_number, 65536,
           metavar="N", aliases=("max_token_limit",)),
    Option("total_tokens", "most tokens of all requests and replies together, as the card and the terminal count them",
           whole_number, metavar="N"),
    Option("budget", "most money of the run, in US dollars", positive_number, metavar="DOLLARS"),
    Option("time", "longest time of the run: seconds, or 90s, 15m, 2h", seconds, metavar="TIME"),
    Option("command_timeout", "time-out of a command for which the model names none: seconds, or 90s, 15m, 2h", seconds,
           120.0, metavar="TIME"),
    Option("same_failures", "the run ends when the same call has failed so many times in a row; 0: never", count, 8,
           metavar="N"),
    Option("nudges", "replies in a row without a call that get a request for one before the run ends; all: every one, "
           "until a limit ends the run (default: 2, in a benchmark all)", count_or_all, metavar="N"),
)  # fmt: skip
CONTEXT_OPTIONS = (
    Option("context", "what is sent when a conversation fills three quarters of the model's context: mask (old outputs "
           "as one line each), summary (of old steps, by the model) or full",
           one_of("mask", "summary", "full"), "mask", metavar="KIND"),
)  # fmt: skip
SANDBOX_OPTIONS = (
    Option("isolation", f"{', '.join(isolation_choices())} (process isolates nothing)",
           one_of(*isolation_choices()), "auto", (ISOLATION_VARIABLE,), "KIND"),
    Option("profile", "standard (root inside, few capabilities) or strict (plain user, none, no network)",
           one_of(*PROFILES), "standard", ("LLM_SANDBOX_PROFILE",), "NAME"),
    Option("image", "container image (docker)", environment=("LLM_SANDBOX_IMAGE",), metavar="IMAGE",
           aliases=("docker_image",), short="d"),
    Option("network", "none, allow (the hosts of --allow only), public (the internet, no private address) or open (not "
           "safe); else the profile decides", one_of(*NETWORKS), metavar="KIND"),
    Option("allow", "hosts that the sandbox may reach, such as pypi,github.com:443,*.example.org; several are possible",
           texts, [], metavar="HOSTS", many=True),
    Option("secret", "environment variable whose value is put into requests to these hosts only, outside the sandbox; "
           "several are possible", texts, [], metavar="NAME=HOSTS", many=True),
    Option("ca_bundle", "PEM file of your site's certificate authorities", metavar="FILE"),
    Option("index_url", "your site's Python package index, for pip inside", metavar="URL"),
    Option("proxy", "your site's HTTP proxy, for programs inside", metavar="URL"),
)  # fmt: skip
RESOURCE_OPTIONS = (
    Option("memory_mb", "memory of a sandbox in MB", whole_number, metavar="N"),
    Option("cpus", "processors of a sandbox", positive_number, metavar="NUMBER"),
    Option("pids", "most processes of a sandbox", whole_number, metavar="N"),
    Option("disk_mb", "most megabytes of all files of a sandbox together", whole_number, metavar="N"),
    Option("files", "most files of a sandbox", whole_number, metavar="N"),
)
FILE_OPTIONS = (
    Option("input_dir", "file or folder whose content the model finds in its input folder", metavar="PATH",
           short="i"),
    Option("output_dir", "where the run's folder is made", default="sandbox-runs", metavar="FOLDER",
           short="o"),
    Option("prompt_config", "YAML file with system_prompt and instance_prompt", metavar="FILE", short="p"),
    Option("prompts", "own, or original: those of llm-in-sandbox 0.2.0, read from that package (extra `original`)",
           one_of("own", "original"), "own", metavar="WHOSE"),
    Option("save_litellm_response", "also keep each request and reply as a JSON file of its own", yes_or_no,
           False, metavar="BOOL", switch=True),
)  # fmt: skip
PAUSE_OPTIONS = (
    Option("step", "pause before every tool call", yes_or_no, False, metavar="BOOL", switch=True),
    Option("break", "pause at calls such as \"tool == 'execute_bash' and 'rm ' in command\"; several are possible",
           texts, [], metavar="EXPR", many=True),
    Option("break_when", "pause when this function returns true: FILE.py:NAME; several are possible", texts, [],
           metavar="FILE:NAME", many=True),
    Option("approve", "ask before every call, only before commands (edits), or before none (auto)",
           one_of("ask", "edits", "auto"), "auto", metavar="KIND"),
    Option("on_pause", "at a pause: ask here, stop the run, or continue", one_of("ask", "stop", "continue"), "ask",
           metavar="KIND"),
)  # fmt: skip
CHECK_OPTIONS = (
    Option("check", "a command that checks the result after the model has submitted, where the model can neither see "
           "nor change it: exit code 0 passes", metavar="COMMAND"),
    Option("check_files", "a file, or a folder's content, that only the check has: its command runs there; several are "
           "possible", texts, [], metavar="PATH", many=True),
    Option("check_tries", "how often the result is checked: after a failed check but the last, the model reads its "
           "output and continues", whole_number, 1, metavar="N"),
    Option("check_timeout", "longest time of a check: seconds, or 90s, 15m, 2h", seconds, 600.0, metavar="TIME"),
)  # fmt: skip
TOOL_OPTIONS = (
    Option(
        "tool",
        "your function that the model can call too: FILE.py:NAME; several are possible",
        texts,
        [],
        metavar="FILE:NAME",
        many=True,
    ),
    Option(
        "doubt",
        "your rule that says why a result may be wrong: FILE.py:NAME; several are possible",
        texts,
        [],
        metavar="FILE:NAME",
        many=True,
    ),
)
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
RUN_OPTIONS = tuple(one for group in GROUPS.values() for one in group)
NOTEBOOK_OPTIONS = (
    Option("model_settings", "temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, timeout, extra_body",
           json_object, {}),
    Option("use_server", "let the Jupyter server keep the sandbox, where it has the extension; else this kernel does",
           yes_or_no, True),
    Option("show", "show the live card of `await solve(...)` in a notebook", yes_or_no, True),
    Option("live_panel", "show a live run as a widget where no Jupyter server with the extension can",
           one_of("auto", "always", "never"), "auto"),
    Option("update_interval", "seconds between updates of a cell's output", number, 0.25),
    Option("dataframe_format", "what a DataFrame given with -i becomes; csv can be read by any sandbox",
           one_of("csv", "parquet"), "csv"),
    Option("embed_file_bytes", "largest file kept in the notebook", whole_number, 1_000_000),
    Option("embed_run_bytes", "bytes of all files of one run kept in the notebook", whole_number, 10_000_000),
)  # fmt: skip
"""Settings that only a notebook has: `%config SandboxMagics` and settings files."""
FILE_SETTINGS = tuple(one for one in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS) if one.in_file)
"""What a settings file may hold."""


def option(name: str) -> Option:
    """The option with this name or alias."""
    return next(one for one in (*RUN_OPTIONS, *NOTEBOOK_OPTIONS) if name in (one.name, *one.aliases))
