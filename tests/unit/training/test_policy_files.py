"""The model of a training in a GGUF file: its name, and what is reported before anything starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from gguf_files import VALUES, gguf_bytes

from llm_sandbox_nb.model.local.source import find_source
from llm_sandbox_nb.model.local.store import Stop
from llm_sandbox_nb.training.config import ConfigError, load_config
from llm_sandbox_nb.training.policy import bfloat16_is_slow, check_gguf, needs_gguf, weights_digest
from llm_sandbox_nb.training.training_run import TrainingRun


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes())
    return path


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("local/smollm2-135m", True),
        ("local/hf:owner/name/file.gguf", True),
        ("models/tiny.GGUF", True),
        ("Qwen/Qwen3-4B-Instruct-2507", False),
        ("localities/model", False),
        ("", False),
    ],
)
def test_a_model_is_in_a_gguf_file_by_its_name(path: str, needed: bool) -> None:
    assert needs_gguf(path) is needed


def test_a_path_and_a_name_find_the_same_source(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # without the package gguf too
    for name in (str(file), f"local/{file}"):
        check_gguf(name)
        assert find_source(name.removeprefix("local/")).fetch(Stop()) == file


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("local/smollm2", r"There is no local model 'smollm2': did you mean local/smollm2-135m\?"),
        ("{folder}/none.gguf", r"The model's file .*none\.gguf is missing: check the path"),
        ("{folder}/words.gguf", r"words\.gguf is not a GGUF file: give a model in the format of llama\.cpp"),
        ("{folder}/cut.gguf", r"cut\.gguf is cut off: fetch or copy the file again"),
        ("{folder}/large.gguf", r"large\.gguf is not a valid GGUF file: its header has impossible numbers"),
        ("local/hf:owner", r"'hf:owner' is not a file of Hugging Face"),
    ],
)
def test_a_wrong_model_is_one_sentence_before_a_folder_is_made(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.gguf").write_text("words")
    (tmp_path / "cut.gguf").write_bytes(gguf_bytes()[:-300])
    (tmp_path / "large.gguf").write_bytes(gguf_bytes({**VALUES, "llama.block_count": 2**31 - 1}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # without torch too
    config = load_config("smollm2-cpu.yaml", {"model.path": path.replace("{folder}", str(tmp_path))})
    with pytest.raises(ConfigError, match=said):
        TrainingRun(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_one_sentence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"tiny\.gguf is a GGUF file, which needs the package gguf: run `pip install"
    ):
        check_gguf(str(file))


def test_the_digest_of_a_file_changes_with_its_weights(file: Path) -> None:
    before = weights_digest(str(file))
    file.write_bytes(gguf_bytes()[:-1] + b"\1")
    assert weights_digest(str(file)) != before
    assert weights_digest("local/smollm2-135m") == "local/smollm2-135m"


@pytest.mark.parametrize(
    ("flags", "slow"),
    [("avx2 fma", True), ("avx512f avx512_bf16", False), ("amx_tile amx_bf16", False), ("asimd bf16", False)],
)
def test_bfloat16_is_slow_on_a_cpu_without_its_instructions(tmp_path: Path, flags: str, slow: bool) -> None:
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(f"flags\t\t: fpu {flags}\n")
    assert bfloat16_is_slow("cpu", cpu) is slow
    assert bfloat16_is_slow("cpu", tmp_path / "missing") is False
