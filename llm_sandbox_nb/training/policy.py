"""Policies outside of their training. They are loaded from a folder, and asked like any other model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from llm_sandbox_nb.model.contract import DeltaCallback, ModelError, ModelSettings, Reply
from llm_sandbox_nb.model.local.gguf import read_header
from llm_sandbox_nb.model.local.source import PREFIX, PathSource, find_source
from llm_sandbox_nb.model.local.store import Stop
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import ConfigError, LoraConfig
from llm_sandbox_nb.training.generation import BatchGenerator, Generated, Generator
from llm_sandbox_nb.training.record import COMPLETE, TrainingRecord
from llm_sandbox_nb.training.token_model import TokenModel


def needs_gguf(path: str) -> bool:
    """Return True if the model is in a GGUF file: `path` is `local/NAME`, or the path of such a file."""
    return path.startswith(PREFIX) or path.lower().endswith(".gguf")


def check_gguf(path: str) -> None:
    """Check the GGUF file of a model. If the file is missing, check that it can be fetched.

    Raises:
        ConfigError: if a package is missing, the name is unknown, the file is not a GGUF file, or the file cannot be
            fetched.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"The model {path} is a GGUF file, which needs the package gguf: run `pip install 'llm-sandbox-nb[rl]'`."
        )
    try:
        source = find_source(path.removeprefix(PREFIX))
        source.check()
        if isinstance(source, PathSource):
            _check_header(source.path)
    except ModelError as error:
        raise ConfigError(str(error)) from error


def _gguf_file(path: str) -> Path:
    """Return the GGUF file of a model, and fetch the file if necessary. Raise ConfigError if this is impossible."""
    try:
        file = find_source(path.removeprefix(PREFIX)).fetch(Stop())
        _check_header(file)
        return file
    except ModelError as error:
        raise ConfigError(str(error)) from error


def _check_header(file: Path) -> None:
    """Check the numbers in a file's header, before Transformers makes a model of that size.

    Raises:
        ModelError: if the header cannot be read.
        ConfigError: if the numbers in the header are impossible, or the model has several files.
    """
    header = read_header(file)
    if header.parts > 1:
        raise ConfigError(
            f"{file.name} is one of {header.parts} files of a model: merge them first with `llama-gguf-split --merge`."
        )
    if not header.is_plausible:
        raise ConfigError(f"{file} is not a valid GGUF file: its header has impossible numbers.")


def peft_config(lora: LoraConfig) -> Any:
    """Return PEFT's configuration of LoRA matrices, or None if all weights are trained."""
    if not lora.rank:
        return None
    import peft

    targets = lora.targets if lora.targets == "all-linear" else lora.targets.split()
    return peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")


def bfloat16_is_slow(device: str, cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if a policy trains on this CPU, and the CPU has no instructions for bfloat16.

    A training step of SmolLM2-135M then takes eight times as long as with float32.

    Args:
        device: `device` of the configuration.
        cpu: the system's description of the CPU. If the file is missing, the CPU is unknown, and the result is False.
    """
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return False
    # The instructions are named avx512_bf16 and amx_bf16 on x86, and bf16 on ARM.
    return cpu.is_file() and "bf16" not in cpu.read_text("utf-8")


def load_policy(path: str, dtype: str = "auto") -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder, from the hub, or from a GGUF file. Convert the weights to `dtype`.

    Raises:
        ConfigError: if the model or the tokenizer cannot be loaded.
    """
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder, options, dense = path, {}, {}
    if needs_gguf(path):
        file = _gguf_file(path)
        folder, options = str(file.parent), {"gguf_file": file.name}
        if (packed := getattr(transformers, "GgufConfig", None)) is not None:
            # Without this, Transformers 5.24 leaves the weights packed, and packed weights cannot be saved or trained.
            dense = {"quantization_config": packed(dequantize=True)}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", **options)
        model = _adapted_model(Path(path), dtype)
        if model is None:
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, output_loading_info=True, **options, **dense
            )
            if missing := sorted(loading["missing_keys"]):
                raise ConfigError(
                    f"The folder {path} has no weights {missing[0]} ({len(missing)} are missing), and random weights "
                    "would replace them: give the folder of a whole model."
                )
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        raise ConfigError(f"The model {path} cannot be loaded ({reason}): check the path.") from error
    if options and hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the loaded weights are not quantized
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _adapted_model(path: Path, dtype: str) -> Any:
    """Load the model in a folder with LoRA matrices, and merge the matrices into their base model.

    Return None for any other folder.

    Raises:
        ConfigError: if the matrices are for other layers, so that only the base model would be loaded.
    """
    if not (path / "adapter_config.json").is_file():
        return None
    from peft import AutoPeftModelForCausalLM, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    model = AutoPeftModelForCausalLM.from_pretrained(str(path), dtype=dtype)
    saved = load_peft_weights(str(path), device="cpu")
    check_adapter(path, _lora_names(saved), _lora_names(get_peft_model_state_dict(model)))
    return model.merge_and_unload()


def _lora_names(weights: Iterable[str]) -> set[str]:
    return {name for name in weights if "lora_" in name}


def check_adapter(path: Path, saved: set[str], wanted: set[str]) -> None:
    """Check that the saved LoRA matrices have the same names as the model's matrices.

    Raises:
        ConfigError: if names differ, because PEFT would ignore the saved matrices and leave the base model unchanged.
    """
    if others := sorted(saved ^ wanted):
        problem = (
            "names that the model does not have" if others[0] in saved else "not all that the model needs"
        )
        raise ConfigError(
            f"The adapter in {path} has {problem}, such as {others[0]}: save it with PEFT's save_pretrained from the "
            "model that it belongs to."
        )


_EDGE_BYTES = 1024**2


def weights_digest(path: str) -> str:
    """Return a digest of the policy in a folder, from the names, sizes, beginnings and ends of the folder's files.

    For a model on the hub, and for `local/NAME`, return the name itself.
    """
    folder = expanded(path)
    if not folder.exists() or path.startswith(PREFIX):
        return path
    found = hashlib.sha256()
    files = folder.iterdir() if folder.is_dir() else [folder]
    for file in sorted(
        file for file in files if file.suffix in (".safetensors", ".bin", ".json", ".jinja", ".gguf")
    ):
        size = file.stat().st_size
        found.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as data:
            found.update(data.read(_EDGE_BYTES))
            data.seek(max(0, size - _EDGE_BYTES))
            found.update(data.read(_EDGE_BYTES))
    return found.hexdigest()[:16]


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer to a folder, and mark the folder as complete."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / COMPLETE).touch()


@dataclass(frozen=True)
class Sampling:
    """Settings for the sampling of replies. A temperature of 0 selects the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


def sampling_problem(sampling: Sampling) -> str:
    """Return the problem of sampling settings, or an empty text if the settings are valid."""
    if sampling.temperature < 0:
        return f"The temperature has to be at least 0, not {sampling.temperature:g}"
    if not 0 < sampling.top_p <= 1:
        return f"Top-p has to be above 0 and at most 1, not {sampling.top_p:g}"
    if sampling.top_k < 0:
        return f"Top-k has to be at least 0 (all tokens), not {sampling.top_k}"
    if sampling.repetition_penalty <= 0:
        return f"The repetition penalty has to be above 0, not {sampling.repetition_penalty:g}"
    return ""


class LocalGenerator(BatchGenerator):
    """Generator that samples with a model of this process, in a separate thread.

    Waiting requests are answered together. `with` ends the thread. For `device`, see `TrainingConfig`.
    """

    def __init__(
        self, model: Any, tokenizer: Any, sampling: Sampling, seed: int = 0, device: str = "cpu"
    ) -> None:
        import torch

        super().__init__(patience=0.0)
        self._model = model.to("cuda") if device == "auto" and torch.cuda.is_available() else model
        self._tokenizer, self._sampling, self._seed = tokenizer, sampling, seed
        self._thread = threading.Thread(target=self._serve, name="llm-sandbox-policy", daemon=True)

    def start(self) -> None:
        """Start the thread, which ends with `close` or with this process."""
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join()

    def _serve(self) -> None:
        import torch

        torch.manual_seed(self._seed)
        self._model.eval()
        while not self._closed:
            try:
                self.serve(self._sample)
            except Exception:  # noqa: BLE001 - each request has the error already
                continue

    def _sample(self, prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        import torch

        width, end = max(map(len, prompts)), self._tokenizer.eos_token_id
        padding = self._tokenizer.pad_token_id
        ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts]).to(
            self._model.device
        )
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]).to(
            ids.device
        )
        sampling = self._sampling
        how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        with torch.no_grad():
            made = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max(limits),
                do_sample=sampling.temperature > 0,
                **(how if sampling.temperature > 0 else {}),
                repetition_penalty=sampling.repetition_penalty,
                pad_token_id=padding,
                eos_token_id=end,
            )[:, width:].tolist()
        return [
            Generated(tuple(reply[: reply.index(end) + 1] if end in reply else reply)[:limit])
            for reply, limit in zip(made, limits, strict=True)
        ]


class PolicyModel:
    """Policy as a model for `solve`, for benchmarks and for resumed rollouts. Several conversations are possible.

    The token ids of a conversation are kept between its requests, so nothing is encoded twice. If another model began
    the conversation, its messages are encoded.
    """

    scripted = False
    append_only = True

    def __init__(
        self, name: str, chat: ChatTokens, generator: Generator, *, prompt_limit: int, completion_limit: int
    ) -> None:
        self.name = name
        self._chat, self._generator = chat, generator
        self._limits = {"prompt_limit": prompt_limit, "completion_limit": completion_limit}
        self._open: dict[str, TokenModel] = {}
        """Conversations that may continue, by a digest of their messages up to the newest reply."""

    @classmethod
    def load(cls, folder: str | Path, *, temperature: float = 1.0) -> PolicyModel:
        """Load the newest policy of a training, or the policy of a checkpoint. Replies are sampled in this process.

        Raises:
            RecordError, ConfigError: if the policy does not exist.
        """
        record = TrainingRecord.around(folder)
        given = expanded(folder).absolute()
        path = record.newest_policy() if given == record.folder else given
        config = record.config
        model, tokenizer = load_policy(str(path), config.model.dtype)
        how = config.rollouts
        sampling = Sampling(temperature, how.top_p, how.top_k)
        generator = LocalGenerator(model, tokenizer, sampling, config.seed, config.device)
        generator.start()
        return cls(
            f"policy/{config.name}",
            ChatTokens(tokenizer, in_text=how.calls == "text"),
            generator,
            prompt_limit=how.prompt_tokens,
            completion_limit=how.completion_tokens,
        )

    async def reply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        settings: ModelSettings,
        on_delta: DeltaCallback | None = None,
    ) -> Reply:
        """Return the next reply; see `Model.reply`. Only the setting `max_tokens` is used."""
        conversation = self._conversation(messages, tools)
        reply = await conversation.reply(messages, tools, settings)
        self._open[_fingerprint([*messages, reply.message])] = conversation
        if len(self._open) > 10_000:
            del self._open[next(iter(self._open))]
        return reply

    def close(self) -> None:
        """End the thread that `load` started, so that the model's memory can be freed."""
        if isinstance(self._generator, LocalGenerator):
            self._generator.close()

    def _conversation(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> TokenModel:
        replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        begun = messages[: replies[-1] + 1] if replies else []
        if begun and (known := self._open.pop(_fingerprint(begun), None)) is not None:
            return known
        made = TokenModel(self.name, self._chat, self._generator, **self._limits)
        if begun:
            made.take_over(begun, tools)
        return made


def _fingerprint(messages: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode("utf-8", "replace")).hexdigest()
