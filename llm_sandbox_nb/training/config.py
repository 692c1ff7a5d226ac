"""Configuration of a training, from a YAML file.

Each key is defined together with its documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.options.table import option
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.sandbox.isolations import NETWORKS, isolation_choices

CONFIGS = Path(__file__).with_name("configs")
"""Folder of the packaged configurations."""
MODES = ("sandbox", "sandbox-prompt", "llm")
CALLS = ("native", "text")
ENGINES = ("transformers", "vllm", "vllm-server")


class ConfigError(LLMSandboxError, ValueError):
    """Error for a configuration that cannot be used. The message is one sentence with the remedy."""


Bounds = Literal["at least zero", "more than zero", "more than zero and at most 1"]
_BOUNDS: Mapping[Bounds, Callable[[float], bool]] = types.MappingProxyType(
    {
        "at least zero": lambda number: 0 <= number < math.inf,
        "more than zero": lambda number: 0 < number < math.inf,
        "more than zero and at most 1": lambda number: 0 < number <= 1,
    }
)
"""Bounds of numbers in words, and a function that returns True for a number within them."""


def key(default: Any, text: str, *, bounds: Bounds = "at least zero") -> Any:
    """Define a key of the configuration, with its default, its documentation and, for a number, its bounds."""
    return field(default=default, metadata={"text": text, "bounds": bounds})


@dataclass(frozen=True)
class LoraConfig:
    """Options of LoRA: the package PEFT trains small matrices instead of all weights."""

    rank: int = key(0, "rank of the matrices; 0 trains all weights")
    alpha: float = key(32.0, "scale of the matrices")
    targets: str = key("all-linear", "layers that get matrices, as `target_modules` of PEFT")


@dataclass(frozen=True)
class ModelConfig:
    """Options of the policy's model."""

    path: str = key(
        "",
        "name on the Hugging Face hub, folder, GGUF file, or `local/NAME` as for `--model`; empty makes a tiny model "
        "with random weights",
    )
    dtype: str = key("float32", "type of the weights: `float32`, `bfloat16`, `float16` or `auto`")
    layers: int = key(2, "layers of a tiny model", bounds="more than zero")
    width: int = key(96, "width of a tiny model", bounds="more than zero")
    heads: int = key(4, "attention heads of a tiny model", bounds="more than zero")
    vocabulary: int = key(
        640,
        "learned tokens of a tiny model, in addition to a token for each fixed line of a prompt",
        bounds="more than zero",
    )
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class DataConfig:
    """Options of the rows to learn from."""

    task: str = key(
        "instruct_pretrain",
        "name or folder of a benchmark task; it gives the prompts, the scorer and the rows",
    )
    rows: str = key(
        "",
        "a file of rows (.jsonl, .json, .parquet) or `hf:OWNER/NAME/CONFIG`; empty: the task's rows; `notes`: rows of "
        "the tiny task; `ledger`: questions about files, for a small pretrained model",
    )
    count: int = key(
        0,
        "maximum number of rows; for `notes` and `ledger`, the number of rows to make. 0: all rows, or 64 made rows",
    )
    scorer: str = key(
        "", "a scorer by name, or a Python file with `score(answer, gold, **row)`; empty: the task's"
    )


@dataclass(frozen=True)
class WarmUpConfig:
    """Options of the warm-up: supervised learning from recorded or scripted runs, before the reinforcement learning."""

    steps: int = key(0, "number of steps; 0: no warm-up")
    runs: str = key(
        "", "a folder of recorded runs to learn from; empty: scripted runs of `notes` or `ledger` are made"
    )
    count: int = key(192, "maximum number of runs to learn from", bounds="more than zero")
    batch: int = key(16, "number of runs in a step", bounds="more than zero")
    learning_rate: float = key(2e-3, "learning rate", bounds="more than zero")
    least_reward: float = key(0.0, "minimum reward of a run to learn from")


@dataclass(frozen=True)
class RolloutConfig:
    """Options of rollouts: runs in which the policy works on a row."""

    mode: str = key(
        "sandbox", "`sandbox`; `sandbox-prompt`: with documents in the prompt; `llm`: without a sandbox"
    )
    calls: str = key(
        "native",
        "form of calls; `native`: the form of the chat template; `text`: plain text, for a template without tools",
    )
    rows_per_step: int = key(8, "number of rows in a step", bounds="more than zero")
    per_row: int = key(
        8,
        "number of rollouts of a row; the baseline of a rollout is the mean reward of the row's other rollouts",
    )
    turns: int = key(100, "maximum number of turns of a rollout", bounds="more than zero")
    prompt_tokens: int = key(16_384, "maximum number of tokens of the first prompt", bounds="more than zero")
    completion_tokens: int = key(
        65_536, "maximum number of tokens after the prompt, observations included", bounds="more than zero"
    )
    reply_tokens: int = key(0, "maximum number of tokens of a reply; 0: only `completion_tokens` limits it")
    time: float = key(5400.0, "deadline of a rollout, in seconds", bounds="more than zero")
    command_timeout: float = key(
        option("command_timeout").default,
        "maximum seconds of a command whose call sets no time-out",
        bounds="more than zero",
    )
    temperature: float = key(1.0, "temperature of sampling", bounds="more than zero")
    top_p: float = key(1.0, "top-p of sampling", bounds="more than zero and at most 1")
    top_k: int = key(0, "top-k of sampling; 0: all")
    nudges: int = key(
        1_000_000, "number of successive replies without a call that are answered with a request for a call"
    )
    zero_reward_for: tuple[str, ...] = key(
        ("steps", "tokens"),
        "stop reasons that give the reward 0; by default, those of rollouts that are too long",
    )
    attempts: int = key(
        3,
        "maximum number of attempts at a rollout; if all attempts fail, the rollout gets no gradient",
        bounds="more than zero",
    )
    at_once: int = key(0, "maximum number of simultaneous rollouts; 0: all rollouts of a step")
    isolation: str = key(
        "auto", f"isolation of the sandbox: {', '.join(f'`{name}`' for name in isolation_choices())}"
    )
    profile: str = key("standard", "protection profile of the sandbox")
    image: str = key("", "Docker image of the sandbox; empty: the package's image")
    network: str = key(
        "none", "network of the sandbox: `none`, `allow`, `public`, `open` (not safe); empty: the profile's"
    )
    allow: tuple[str, ...] = key(
        (), "hosts that network `allow` can reach, such as `pypi` and `*.example.org`"
    )
    secrets: tuple[str, ...] = key(
        (), "`NAME=host[,host]`: an environment variable, and the hosts that get its secret value"
    )
    fresh_sandboxes: bool = key(
        False, "open a new sandbox for each rollout; otherwise a reset sandbox serves the next rollout"
    )
    ray: str = key(
        "", "Ray cluster whose machines run the sandboxes: `auto` or HOST:PORT; empty: this machine runs them"
    )

    def unshaped(self) -> RolloutConfig:
        """Return the options for validations, which score the answers without additions of the reward."""
        return dataclasses.replace(self, zero_reward_for=())


@dataclass(frozen=True)
class ValidationConfig:
    """Options of validations: during the training, they score the policy on rows that it does not learn from."""

    every: int = key(
        0, "number of steps between two validations; the first one is before step 1; 0: no validations"
    )
    tasks: tuple[str, ...] = key(
        (), "names or folders of benchmark tasks; empty: the task that the policy learns from"
    )
    rows: str = key(
        "",
        "rows as in `data.rows`, or a folder with TASK.jsonl; after `hf:`, `{task}` stands for the task's name; empty: "
        "the tasks' rows or, for `notes` and `ledger`, rows that the training does not use",
    )
    count: int = key(0, "maximum number of rows of a task; 0: all rows")
    repeats: int = key(1, "number of rollouts of each row", bounds="more than zero")
    temperature: float = key(1.0, "temperature of sampling")
    top_p: float = key(1.0, "top-p of sampling")
    top_k: int = key(0, "top-k of sampling; 0: all")


@dataclass(frozen=True)
class ObjectiveConfig:
    """Options of the objective, with the names of TRL."""

    learning_rate: float = key(
        1e-6, "learning rate, which is constant after `warmup_steps`", bounds="more than zero"
    )
    warmup_steps: int = key(0, "number of first steps in which the learning rate rises")
    epsilon: float = key(0.2, "the lower bound of the clip is 1 - epsilon")
    epsilon_high: float = key(0.28, "the upper bound of the clip is 1 + epsilon_high")
    beta: float = key(0.0, "weight of the KL divergence from the first policy; 0 needs no reference model")
    max_grad_norm: float = key(
        1.0, "maximum norm of the gradient; a larger gradient is scaled down to this norm"
    )
    micro_batch: int = key(
        0, "number of rollouts whose gradient is computed at once; 0: all rollouts of a process"
    )
    weight_decay: float = key(0.0, "weight decay of AdamW")
    activation_checkpointing: bool = key(
        False, "save memory: compute activations a second time instead of storing them"
    )


@dataclass(frozen=True)
class GenerationConfig:
    """Options of the engine that samples replies."""

    engine: str = key(
        "transformers",
        "engine: `transformers` (CPU or GPU), `vllm` (in the trainer's process), or `vllm-server`",
    )
    patience: float = key(
        30.0, "maximum seconds that a request for a reply waits for rollouts that still execute a command"
    )
    server: str = key("http://127.0.0.1:8000", "address of the server, for `vllm-server`")
    memory: float = key(
        0.3, "share of the GPU's memory for vLLM, for `vllm`", bounds="more than zero and at most 1"
    )


@dataclass(frozen=True)
class RecordConfig:
    """Options of the files that a training keeps on disk."""

    keep: int = key(
        20, "number of newest steps whose rollouts are kept; 0: all steps. The figures of all steps are kept"
    )
    checkpoint_every: int = key(10, "number of steps between two checkpoints", bounds="more than zero")
    checkpoints: int = key(2, "number of newest checkpoints that are kept; 0: all checkpoints")


@dataclass(frozen=True)
class TrainingConfig:
    """Configuration of a training."""

    name: str = key("training", "name of the policy in records")
    seed: int = key(42, "seed for random weights, the order of the rows, and the sampling")
    steps: int = key(100, "number of steps of the policy gradient", bounds="more than zero")
    device: str = key("auto", "`cpu`, or `auto` for a GPU if the machine has one")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    record: RecordConfig = field(default_factory=RecordConfig)

    @property
    def batch(self) -> int:
        """Number of rollouts in a step."""
        return self.rollouts.rows_per_step * self.rollouts.per_row

    def as_yaml(self) -> str:
        return yaml.safe_dump(_plain(dataclasses.asdict(self)), sort_keys=False)


def config_names() -> list[str]:
    return sorted(path.name for path in CONFIGS.glob("*.yaml"))


def load_config(name: str | Path, changes: Mapping[str, Any] | None = None) -> TrainingConfig:
    """Load a configuration from a YAML file, or a packaged configuration by name.

    `changes` maps keys to new values, as in `{"rollouts.per_row": 4}`. A text value is parsed as YAML.

    Raises:
        ConfigError: if the file does not exist, or a key or value is wrong.
    """
    path = expanded(name)
    if not path.is_file() and (CONFIGS / str(name)).is_file():
        path = CONFIGS / str(name)
    try:
        content = yaml.safe_load(path.read_text("utf-8-sig")) or {}
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no configuration {name}: give a YAML file, or one of {', '.join(config_names())}."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error}): give a YAML file.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} has to hold keys such as `steps:` and `rollouts:`.")
    return _changed(content, changes or {})


def changed_config(config: TrainingConfig, changes: Mapping[str, Any]) -> TrainingConfig:
    """Return the configuration with changed values; see `load_config`. Raise ConfigError if a key or value is wrong."""
    return _changed(yaml.safe_load(config.as_yaml()), changes)


def _changed(content: dict[str, Any], changes: Mapping[str, Any]) -> TrainingConfig:
    for dotted, value in changes.items():
        _change(content, dotted, value)
    return make_config(content)


def make_config(content: Mapping[str, Any]) -> TrainingConfig:
    """Make a configuration from the content of a YAML file. Raise ConfigError if a key or value is wrong."""
    config: TrainingConfig = _made(TrainingConfig, content, "")
    _check(config)
    return config


def documented_keys() -> list[tuple[str, str, str]]:
    """Return the name, the default as YAML, and the documentation of every key."""
    return list(_documented(TrainingConfig, ""))


def _documented(kind: type[Any], prefix: str) -> typing.Iterator[tuple[str, str, str]]:
    for key, inner in _fields(kind):
        if dataclasses.is_dataclass(inner):
            yield from _documented(typing.cast(type[Any], inner), f"{prefix}{key.name}.")
        else:
            default = _plain(key.default)
            shown = yaml.safe_dump(default, default_flow_style=True).removesuffix("\n...\n").strip()
            yield f"{prefix}{key.name}", shown, key.metadata["text"]


def _fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(key, hints[key.name]) for key in dataclasses.fields(kind)]


def _change(content: dict[str, Any], dotted: str, value: Any) -> None:
    *folders, last = dotted.split(".")
    for name in folders:
        inner = content.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted} is not a key of a training: {name} does not hold keys.")
        content = inner
    try:
        # `KEY=` sets a key to an empty text
        content[last] = yaml.safe_load(value) if isinstance(value, str) and value else value
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{dotted}={value} is not valid YAML: {' '.join(str(error).split())}.") from error


def _made(kind: type[Any], content: Any, where: str) -> Any:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'The configuration'} has to hold keys, not {content!r}.")
    known = {field.name: inner for field, inner in _fields(kind)}
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {where}{near[0]}?" if near else f"known are {', '.join(known)}."
            raise ConfigError(f"There is no key {where}{name}; {hint}")
    return kind(**{name: _value(known[name], value, f"{where}{name}") for name, value in content.items()})


def _value(kind: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _made(typing.cast(type[Any], kind), value or {}, f"{name}.")
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{name} has to be a list of texts, not {value!r}.")
        return tuple(value)
    if kind is float and isinstance(value, str):
        try:  # YAML reads 1e-6 as a text
            value = float(value)
        except ValueError as error:
            raise ConfigError(f"{name} has to be a number, not {value!r}.") from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words: Mapping[Any, str] = types.MappingProxyType(
            {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        )
        raise ConfigError(f"{name} has to be {words[kind]}, not {value!r}.")
    return value


def _check(config: TrainingConfig) -> None:
    rollouts = config.rollouts
    one_of = {
        "rollouts.mode": (rollouts.mode, MODES),
        "rollouts.calls": (rollouts.calls, CALLS),
        "rollouts.network": (rollouts.network, (*NETWORKS, "")),
        "generation.engine": (config.generation.engine, ENGINES),
        "device": (config.device, ("auto", "cpu")),
        "model.dtype": (config.model.dtype, ("float32", "bfloat16", "float16", "auto")),
    }
    for name, (value, known) in one_of.items():
        if value not in known:
            words = [word or "empty" for word in known]
            raise ConfigError(f"{name} has to be {', '.join(words[:-1])} or {words[-1]}, not {value!r}.")
    _check_numbers(config, "")
    if config.seed >= 2**32:
        raise ConfigError(f"seed has to be less than 2**32, not {config.seed}.")
    if rollouts.per_row < 2:
        raise ConfigError(
            f"rollouts.per_row has to be at least 2, not {rollouts.per_row}: a row's other rollouts are the baseline."
        )
    micro = config.objective.micro_batch
    if micro and config.batch % micro:
        raise ConfigError(
            f"objective.micro_batch has to divide the {config.batch} rollouts of a step, not {micro}."
        )
    if not config.model.path and config.data.rows != "notes":
        raise ConfigError(
            "A tiny model is for the tiny task: set data.rows to notes, or model.path to a model."
        )


def _check_numbers(config: Any, prefix: str) -> None:
    for key in dataclasses.fields(config):
        value = getattr(config, key.name)
        if dataclasses.is_dataclass(value):
            _check_numbers(value, f"{prefix}{key.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            bounds = key.metadata["bounds"]
            if not _BOUNDS[bounds](value):
                raise ConfigError(f"{prefix}{key.name} has to be {bounds}, not {value}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
