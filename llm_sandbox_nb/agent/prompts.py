"""Prompts, which are read from YAML. Their placeholders are filled in by plain replacement.

In a file of the paper's package, braces are written as for Python's `str.format`, where `{{` stands for `{`.
"""

from __future__ import annotations

import posixpath
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.contract import Directories

_PLACEHOLDER = re.compile(r"\{(problem_statement|working_dir|input_dir|output_dir)\}")
_FORMAT_FIELD = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>\w+)\}")
_ANSWER_FILE_PATH = re.compile(r"(?<![\w./-])/(?:[\w.-]+/)*answer\.txt(?![\w/-]|\.\w)")
_FIELDS = frozenset(("problem_statement", "working_dir", "input_dir", "output_dir", "command_docs", "demo"))
"""Placeholders in prompts of the paper's package. That package replaces the last two by an empty text."""


@dataclass(frozen=True)
class PromptConfig:
    """Prompts, and the folders in the sandbox. The fields are the keys of the YAML."""

    system_prompt: str
    instance_prompt: str = "{problem_statement}"
    working_dir: str = Directories().root
    input_dir: str = Directories().input
    output_dir: str = Directories().output
    braces: str = "plain"
    """Form of braces. `plain`: all braces except those of placeholders are text. `doubled`: `{{` stands for `{`."""
    source: str = ""
    """Name of the package that the prompts come from. Empty for prompts of this package or of a file."""
    text_form: str = "code"
    """Form of calls that are written as text: `code`, `bash`, `json`, `brief`, or the path of a YAML file."""
    text_system_prompt: str = ""
    """System prompt of a run that begins in text mode. If empty, `system_prompt` is used."""
    text_instance_prompt: str = ""

    def messages(self, task: str, *, in_text: bool = False, preview: str = "") -> list[dict[str, Any]]:
        """Return the first two messages of a conversation about `task`.

        Args:
            task: text of the task.
            in_text: True if the conversation begins in text mode.
            preview: preview of the input files. It is added below the task if `in_text` is True and there is a
                `text_system_prompt`.
        """
        system, instance = self.system_prompt, self.instance_prompt
        if in_text and self.text_system_prompt:
            system, instance = self.text_system_prompt, self.text_instance_prompt or instance
            task = f"{task}\n\n{preview}" if preview else task
        values = {
            "problem_statement": task,
            "working_dir": self.working_dir,
            "input_dir": self.input_dir,
            "output_dir": self.output_dir,
        }
        return [
            {"role": "system", "content": self._filled(system, values)},
            {"role": "user", "content": self._filled(instance, values)},
        ]

    def _filled(self, template: str, values: Mapping[str, str]) -> str:
        if self.braces == "plain":
            return fill(template, values)
        return _FORMAT_FIELD.sub(
            lambda match: match["brace"][0] if match["brace"] else values.get(match["name"], ""), template
        )

    @property
    def answer_files(self) -> list[str]:
        """Paths of possible answer files: paths in the prompts, then `answer.txt` in the output and working folders."""
        prompts = "\n".join(message["content"] for message in reversed(self.messages("")))
        usual = (posixpath.join(folder, "answer.txt") for folder in (self.output_dir, self.working_dir))
        return list(dict.fromkeys([*_ANSWER_FILE_PATH.findall(prompts), *usual]))

    def under(self, root: str) -> PromptConfig:
        """Return the prompts for a sandbox with the working directory `root`, which replaces `/testbed` in paths."""
        usual = Directories().root
        if root == usual:
            return self

        def moved(path: str) -> str:
            return root + path[len(usual) :] if path == usual or path.startswith(f"{usual}/") else path

        return replace(
            self,
            working_dir=moved(self.working_dir),
            input_dir=moved(self.input_dir),
            output_dir=moved(self.output_dir),
        )


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders in one pass. All other braces, including those in the values, are text."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def braces_of(*templates: str) -> str:
    """Guess the value of `PromptConfig.braces` for prompts.

    The value is `doubled` if some braces are doubled, and the paper's package knows all placeholders.
    """
    try:
        parsed = [part for template in templates for part in string.Formatter().parse(template)]
    except ValueError:
        return "plain"
    fields = [part[1:] for part in parsed if part[1] is not None]
    known = all(name in _FIELDS and not form and not conversion for name, form, conversion in fields)
    doubled = any(brace in template for template in templates for brace in ("{{", "}}"))
    return "doubled" if known and doubled else "plain"


def load_prompts(source: str | Path | PromptConfig | None = None) -> PromptConfig:
    """Load the prompts of a YAML file, or, without `source`, the general prompts of this package.

    Raises:
        InputError: if the file is missing, or is not a prompt configuration.
    """
    if isinstance(source, PromptConfig):
        return source
    if source is None:
        text = resources.files("llm_sandbox_nb.agent").joinpath("prompts/general.yaml").read_text("utf-8")
        return _parse(text, "the general prompts")
    try:
        text = expanded(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise InputError(f"The prompt configuration {source} cannot be read: {reason}.") from error
    return _parse(text, f"the prompt configuration {source}")


def _parse(text: str, name: str) -> PromptConfig:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{_first_upper(name)} is not valid YAML: {_one_line(error)}.") from error
    if not isinstance(content, dict) or "system_prompt" not in content:
        raise InputError(
            f"{_first_upper(name)} has no system_prompt: it has to be YAML with that key at least."
        )
    known = {field.name for field in fields(PromptConfig)}
    chosen = {key: value for key, value in content.items() if key in known and value is not None}
    if wrong := [key for key, value in chosen.items() if not isinstance(value, str)]:
        raise InputError(f"In {name}, {wrong[0]} has to be text.")
    if wrong := [key for key in chosen if key.endswith("_dir") and not chosen[key].startswith("/")]:
        raise InputError(f"In {name}, {wrong[0]} has to be a full path inside the sandbox, such as /testbed.")
    chosen.setdefault("braces", braces_of(chosen["system_prompt"], chosen.get("instance_prompt", "")))
    if chosen["braces"] not in ("plain", "doubled"):
        raise InputError(f"In {name}, braces can be plain or doubled, not {chosen['braces']!r}.")
    folders = {key: value.rstrip("/") or "/" for key, value in chosen.items() if key.endswith("_dir")}
    return PromptConfig(**{**chosen, **folders})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]
