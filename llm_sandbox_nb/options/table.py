"""The options of `run`: one table of names, kinds, defaults and where else a value may come from."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Convert = Callable[[Any], Any]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def text(value: Any) -> str:
    """Text as it stands: `424242` and `True` are text too."""
    if isinstance(value, Mapping | list):
        raise ValueError("text is wanted")
    return str(value)


def whole_number(value: Any) -> int:
    """A whole number of at least 1."""
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number of at least 1 is wanted")
    return number


def number(value: Any) -> float:
    """A number of at least 0."""
    try:
        result = float(str(value))
    except ValueError:
        result = math.nan
    if not 0 <= result < math.inf:
        raise ValueError("a number of at least 0 is wanted")
    return result


def positive_number(value: Any) -> float:
    """A number above 0."""
    try:
        result = number(value)
    except ValueError:
        result = 0.0
    if not result:
        raise ValueError("a number above 0 is wanted")
    return result


def number_or_default(value: Any) -> float | None:
    """A number of at least 0; `default` leaves the choice to the provider."""
    return None if str(value).lower() == "default" else number(value)


def seconds(value: Any) -> float:
    """A time: `90`, `90s`, `15m` or `1.5h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    if not match or not (result := float(match[1]) * _UNITS[match[2]]):
        raise ValueError("a time like 90s, 15m or 2h is wanted")
    return result


def yes_or_no(value: Any) -> bool:
    """A truth value as people and YAML write them."""
    word = str(value).lower()
    if word not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        raise ValueError("true or false is wanted")
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
        raise ValueError("""a JSON object like '{"chat_template_kwargs": {"thinking": true}}' is wanted""")
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
            raise ValueError(f"one of {', '.join(words)} is wanted")
        return str(value)

    return convert


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


QUERY = Option("query", "the task, taken literally", in_file=False)
SETTINGS = Option(
    "settings", "settings file (YAML)", environment=("LLM_SANDBOX_SETTINGS", "LLM_IN_SANDBOX_CONFIG"),
    metavar="FILE", in_file=False,
)  # fmt: skip

MODEL_OPTIONS = (
    Option("llm_name", "model, e.g. openai/gpt-5, anthropic/..., your server's name for it, or scripted/NAME",
           environment=("LLM_NAME",), metavar="NAME"),
    Option("llm_base_url", "address of an OpenAI-compatible server, e.g. http://localhost:8000/v1",
           environment=("LLM_BASE_URL",), metavar="URL"),
    Option("api_key", "key of the model's provider; better in the environment, where nobody else sees it",
           environment=("LLM_API_KEY",), metavar="KEY"),
    Option("temperature", "sampling temperature, or `default` for the provider's own", number_or_default, 1.0,
           ("LLM_TEMPERATURE",), "NUMBER"),
    Option("top_p", "nucleus sampling", number, metavar="NUMBER"),
    Option("top_k", "sample from the k likeliest tokens", whole_number, metavar="N"),
    Option("min_p", "least probability relative to the likeliest token", number, metavar="NUMBER"),
    Option("repetition_penalty", "penalty on repeated tokens", number, metavar="NUMBER"),
    Option("max_tokens_per_call", "most tokens of one reply", whole_number, 65536, metavar="N"),
    Option("extra_body", "further fields of each request, a JSON object", json_object, metavar="JSON"),
)  # fmt: skip
LIMIT_OPTIONS = (
    Option("max_steps", "most replies of the model", whole_number, 100, metavar="N"),
    Option("max_token_limit", "most tokens of the whole conversation", whole_number, 65536, metavar="N"),
    Option("budget", "most US dollars", positive_number, metavar="DOLLARS"),
    Option("time", "longest time of the run: 90s, 15m, 2h", seconds, metavar="TIME"),
)  # fmt: skip
SANDBOX_OPTIONS = (
    Option("isolation", "auto, docker, bubblewrap, or process (which isolates nothing)",
           one_of("auto", "docker", "bubblewrap", "process"), "auto", ("LLM_SANDBOX_ISOLATION",), "KIND"),
    Option("profile", "standard (root inside, few capabilities) or strict (plain user, none, no network)",
           one_of("standard", "strict"), "standard", ("LLM_SANDBOX_PROFILE",), "NAME"),
    Option("docker_image", "image of the container", environment=("LLM_SANDBOX_IMAGE",), metavar="IMAGE"),
    Option("network", "open or none; the profile decides when not given", one_of("open", "none"),
           metavar="KIND"),
    Option("ca_bundle", "PEM file of your site's certificate authorities", metavar="FILE"),
    Option("index_url", "your site's Python package index, for pip inside", metavar="URL"),
    Option("proxy", "your site's HTTP proxy, for programs inside", metavar="URL"),
)  # fmt: skip
FILE_OPTIONS = (
    Option("input_dir", "file or folder whose content the model finds in its input folder", metavar="PATH"),
    Option("output_dir", "where the run's folder is made", default="sandbox-runs", metavar="FOLDER"),
    Option("prompt_config", "YAML file with system_prompt and instance_prompt", metavar="FILE"),
    Option("save_litellm_response", "also keep each request and reply as a JSON file of its own", yes_or_no,
           False, metavar="BOOL", switch=True),
)  # fmt: skip
STOP_OPTIONS = (
    Option("step", "stop before every tool call, and go on in steps", yes_or_no, False, metavar="BOOL", switch=True),
    Option("break", "stop at calls such as \"tool == 'execute_bash' and 'rm ' in command\"; may be given several times",
           texts, [], metavar="EXPR", many=True),
    Option("break_when", "stop when this function says so: FILE.py:NAME; may be given several times", texts, [],
           metavar="FILE:NAME", many=True),
    Option("approve", "ask before every call, only before commands (edits), or before none (auto)",
           one_of("ask", "edits", "auto"), "auto", metavar="KIND"),
    Option("on_pause", "at a stop: ask here, stop the run, or continue", one_of("ask", "stop", "continue"), "ask",
           metavar="KIND"),
)  # fmt: skip
GROUPS = {
    "model": MODEL_OPTIONS,
    "limits": LIMIT_OPTIONS,
    "sandbox": SANDBOX_OPTIONS,
    "files": FILE_OPTIONS,
    "stops": STOP_OPTIONS,
}
RUN_OPTIONS = (*MODEL_OPTIONS, *LIMIT_OPTIONS, *SANDBOX_OPTIONS, *FILE_OPTIONS, *STOP_OPTIONS)
