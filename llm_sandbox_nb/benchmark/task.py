"""Tasks: folders with a YAML file that defines the task, and optionally a Python file with a scorer.

my-task/
  task.yaml      name, description, prompts, directories, limits, data, scorer
  data.jsonl     the rows, also as .json or .parquet; or `data: {dataset: ..., config: ..., split: ...}`
  scorer.py      optional: `score(answer, gold, **row)`

A task folder of the paper's package can be loaded too. Such a folder has a `config.yaml` with `dataset:`, and
optionally a `reward.py` with `compute_score` and a `vanilla_llm_prompt.py` with `create_prompt`.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from llm_sandbox_nb.agent.prompts import PromptConfig, braces_of
from llm_sandbox_nb.agent.run_limits import RunLimits
from llm_sandbox_nb.agent.run_spec import with_given
from llm_sandbox_nb.benchmark.scorers import BY_MODEL, SCORERS
from llm_sandbox_nb.benchmark.swe import EVIDENCE, TEST_COMMAND
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.own_folder import expanded

TASKS = Path(__file__).with_name("tasks")
_TASK_FILES = ("task.yaml", "task.yml", "config.yaml")
_SCORER_FILES = ("scorer.py", "reward.py")
_ASKER_FILE = "vanilla_llm_prompt.py"
_PROMPT_KEYS = ("system_prompt", "instance_prompt", "working_dir", "input_dir", "output_dir")
_SYSTEM_KEYS = ("role", "goal", "answer_rules")
"""Keys of the texts that replace `{role}`, `{goal}` and `{answer_rules}` in the system prompt of each task."""
_KEYS = frozenset(
    (*_PROMPT_KEYS, "name", "description", "vanilla_prompt", "answer", "answer_file", "scorer", "data", "repeats",
     "limits", "image", "test_command", "test_evidence", "domain", *_SYSTEM_KEYS)
)  # fmt: skip
_PAPERS_KEYS = frozenset((*_PROMPT_KEYS, "dataset", "config", "split", "data_files", "prompt_config"))
"""Keys in a `config.yaml` of the paper's package. Such a file has `dataset` or `data_files`, unlike a `task.yaml`."""
_PAPERS_FOLDERS = {"working_dir": "/testbed", "input_dir": "/testbed/documents", "output_dir": "/testbed"}


_WITH_NETWORK = "install packages, look things up, write tools"
_WITHOUT_NETWORK = "it has no network and all that it needs, so write tools"


class TaskError(LLMSandboxError, ValueError):
    """Error for a task that cannot be used. The message is one sentence with the remedy."""


@dataclass(frozen=True)
class DataSource:
    """Source of a task's rows: a file in the task's folder, or a Hugging Face data set.

    `columns` maps this package's column names to the column names in the data.
    """

    file: str = ""
    dataset: str = ""
    config: str | None = None
    split: str = "test"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Definition of a task. `load_task` checks the values of its fields."""

    name: str
    folder: Path
    prompts: PromptConfig
    description: str = ""
    vanilla_prompt: str = "{problem_statement}"
    asker: str = ""
    """Path of a Python file. Its `create_prompt(row)` returns the prompt that replaces `vanilla_prompt`. Empty if the
    task has no such file."""
    scorer: str = "exact"
    """Name of a scorer in `scorers.SCORERS`, or the path of a Python file."""
    answer: Literal["file", "patch", "reply"] = "file"
    """Kind of answer. `file` means the answer file. `reply` means the answer file or, if there is no such file, the
    last text of the run. For `patch`, see `swe`."""
    answer_file: str = ""
    """Name of the answer file that is read first. If this file does not exist, `prompts.answer_files` are tried."""
    data: DataSource = field(default_factory=DataSource)
    repeats: int = 1
    limits: RunLimits = field(default_factory=RunLimits)
    image: str | None = None
    """Docker image with the repository. `{id}` stands for the row's id. None if the repository is not in an image."""
    test_command: str = TEST_COMMAND
    test_evidence: str = "report"
    """Kind of evidence that tests passed. `swe.EVIDENCE` lists the kinds."""

    @property
    def has_own_scorer(self) -> bool:
        """True if a Python file of the task scores the answers."""
        return self.scorer not in SCORERS

    @property
    def needs_judge(self) -> bool:
        """True if a model scores the answers."""
        return self.scorer in BY_MODEL


def without_network(prompts: PromptConfig) -> PromptConfig:
    """Return prompts that do not invite the model to install packages, for a sandbox without network.

    Prompts that are not from this package stay unchanged.
    """
    return replace(prompts, system_prompt=prompts.system_prompt.replace(_WITH_NETWORK, _WITHOUT_NETWORK))


def task_names() -> list[str]:
    return sorted(path.parent.name for path in TASKS.glob("*/task.yaml"))


def load_task(name: str) -> Task:
    """Load a task of this package by its name, or any other task by the path of its folder.

    Raises:
        TaskError: if the task does not exist, or its YAML is wrong.
    """
    folder = TASKS / name
    if "/" in name or "\\" in name or name in (".", "..") or name not in task_names():
        folder = expanded(name)
    file = next((folder / name for name in _TASK_FILES if (folder / name).is_file()), None)
    if file is None:
        near = difflib.get_close_matches(name, task_names(), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(task_names())}."
        raise TaskError(f"There is no task {name!r}, nor a folder of this name with a task.yaml; {hint}")
    content = _yaml(TASKS / "base.yaml") | _checked(_yaml(file), file)
    try:
        return _task(content, folder.resolve())
    except (TypeError, ValueError) as error:
        raise TaskError(f"{file}: {error}") from error


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text_of(path.read_bytes(), "strict"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise TaskError(f"{path} has to hold keys such as `name:` and `scorer:`.")
    return content


def _checked(content: dict[str, Any], file: Path) -> dict[str, Any]:
    """Check the keys of a task file, and return its content. Keys of the paper's package become this package's keys."""
    papers = "dataset" in content or "data_files" in content
    known = _PAPERS_KEYS if papers else _KEYS
    if unknown := [key for key in content if key not in known]:
        near = difflib.get_close_matches(str(unknown[0]), sorted(known), 1)
        raise TaskError(
            f"{file} has an unknown key {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ".")
        )
    return _from_paper(content, file.parent) if papers else content


def _from_paper(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Convert the content of a `config.yaml` of the paper's package to the keys of this package."""
    prompts = content
    if "system_prompt" not in content and "prompt_config" in content:
        prompts = _yaml(_beside(str(content["prompt_config"]), folder))
    found = {key: prompts[key] for key in _PROMPT_KEYS if key in prompts}
    if content.get("dataset") == "json":
        data = {"file": str(_beside(str(content.get("data_files")), folder))}
    else:
        data = {key: content[key] for key in ("dataset", "config", "split") if content.get(key)}
    scorer = {"scorer": "judge"} if _only_a_judge_scores(folder) else {}
    return {**_PAPERS_FOLDERS, "instance_prompt": "{problem_statement}", **found, **scorer, "data": data}


def _only_a_judge_scores(folder: Path) -> bool:
    """Return True if a task folder of the paper's package has a `judge.py`, and `reward.py` only returns a constant."""
    if not (folder / "judge.py").is_file() or not (folder / "reward.py").is_file():
        return False
    try:
        module = ast.parse((folder / "reward.py").read_bytes())
    except (SyntaxError, ValueError):
        return False
    functions = (
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "compute_score"
    )
    work = [
        node
        for function in functions
        for node in function.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return [type(statement.value) for statement in work if isinstance(statement, ast.Return)] == [
        ast.Constant
    ] and len(work) == 1


def _beside(name: str, folder: Path) -> Path:
    """Return the path of a file that is next to the task's folder, in the task's folder, or in the working directory.

    The first existing file counts. If no file exists, return the path next to the task's folder.
    """
    places = (folder.parent / name, folder / name, Path(name))
    return next((path for path in places if path.is_file()), places[0]).absolute()


def _task(content: Mapping[str, Any], folder: Path) -> Task:
    prompts = {key: _text(content, key) for key in _PROMPT_KEYS}
    for key in _SYSTEM_KEYS:
        prompts["system_prompt"] = prompts["system_prompt"].replace(
            f"{{{key}}}", _text(content, key).rstrip()
        )
    for key in ("working_dir", "input_dir", "output_dir"):
        if not prompts[key].startswith("/"):
            raise ValueError(f"{key} has to be a full path inside the sandbox, such as /testbed.")
        prompts[key] = prompts[key].rstrip("/") or "/"
    answer = content.get("answer", "file")
    if answer not in ("file", "patch", "reply"):
        raise ValueError(f"answer has to be `file`, `reply` or `patch`, not {answer!r}.")
    evidence = content.get("test_evidence", EVIDENCE[0])
    if evidence not in EVIDENCE:
        raise ValueError(f"test_evidence has to be {' or '.join(EVIDENCE)}, not {evidence!r}.")
    data = _keys(content, "data", DataSource)
    for key, value in data.items():
        if key == "columns":
            if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
                raise ValueError(
                    f"data.columns has to map fields to columns, as in {{id: instance_id}}, not {value!r}."
                )
        elif not isinstance(value, str | None):
            raise ValueError(f"data.{key} has to be text, not {value!r}.")
    repeats = content.get("repeats", 1)
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats has to be a whole number of at least 1, not {repeats!r}.")
    image = content.get("image")
    if image is not None and not (isinstance(image, str) and image.strip()):
        raise ValueError(f"image has to be the name of a Docker image, not {image!r}.")
    name = str(content.get("name") or folder.name)
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError(f"{name!r} cannot be a name: use letters, digits, dots, dashes and underscores.")
    return Task(
        name=name,
        folder=folder,
        prompts=PromptConfig(
            **prompts, braces=braces_of(prompts["system_prompt"], prompts["instance_prompt"])
        ),
        description=str(content.get("description") or ""),
        vanilla_prompt=_text(content, "vanilla_prompt"),
        asker=str(folder / _ASKER_FILE) if (folder / _ASKER_FILE).is_file() else "",
        scorer=_scorer(content.get("scorer"), folder),
        answer=answer,
        answer_file=str(content.get("answer_file") or ""),
        data=DataSource(**data),
        repeats=repeats,
        limits=with_given(RunLimits(), _keys(content, "limits", RunLimits)),
        image=image,
        test_command=str(content.get("test_command") or TEST_COMMAND),
        test_evidence=evidence,
    )


def _keys(content: Mapping[str, Any], name: str, kind: type[Any]) -> dict[str, Any]:
    """Return the mapping under the key `name`, or an empty mapping if the key is missing.

    Raise ValueError if a key of this mapping is not a field of the class `kind`.
    """
    found, known = content.get(name) or {}, [field.name for field in fields(kind)]
    if not isinstance(found, dict):
        raise ValueError(f"{name} has to hold keys such as `{known[0]}:`.")
    if unknown := [key for key in found if key not in known]:
        raise ValueError(f"{name} has an unknown key {unknown[0]!r}; the known keys are {', '.join(known)}.")
    return found


def _text(content: Mapping[str, Any], key: str) -> str:
    if not isinstance(content.get(key), str):
        raise ValueError(f"{key} has to be text.")
    return str(content[key])


def _scorer(named: Any, folder: Path) -> str:
    if named in SCORERS:
        return str(named)
    candidates = (str(named),) if named else _SCORER_FILES
    for name in candidates:
        if (folder / name).is_file():
            return str(folder / name)
    if named:
        raise ValueError(
            f"there is no scorer {named!r}: name a file in the task's folder, or one of {', '.join(SCORERS)}."
        )
    return "exact"
