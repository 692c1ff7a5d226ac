"""The header of a model's file: what it says, and one sentence for every file that is none."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from gguf_files import VALUES, gguf_bytes, text
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.gguf import read_header


def written(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as refused:
        read_header(path)
    said = str(refused.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert str(path) in said
    return said


def test_the_header_says_what_model_it_is(tmp_path: Path) -> None:
    header = read_header(written(tmp_path, gguf_bytes()))
    assert (header.architecture, header.title, header.context_length, header.parts) == (
        "llama",
        "Tiny",
        2048,
        1,
    )
    assert header.cache_bytes_per_token == 2 * 2 * (16 + 16) * 2


def test_a_number_for_each_layer_counts_as_its_largest(tmp_path: Path) -> None:
    data = gguf_bytes({**VALUES, "llama.attention.head_count_kv": [1.0, 4.0]})
    data = data.replace(struct.pack("<IIQff", 9, 6, 2, 1.0, 4.0), struct.pack("<IIQII", 9, 4, 2, 1, 4))
    assert read_header(written(tmp_path, data)).cache_bytes_per_token == 2 * 4 * (16 + 16) * 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04 a wheel", "is not a GGUF file"),
        (b"GGUF", "is cut off"),
        (gguf_bytes(version=9), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "impossible numbers"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "impossible numbers"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1 << 50), "too long"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<I", 77), "unknown type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 9, 3), "another list"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 40), "too long"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 4, 1 << 20),
            "is cut off",
        ),
        (gguf_bytes({"general.name": "x"}), "the architecture or the tensors are missing"),
        (gguf_bytes(tensors=0), "the architecture or the tensors are missing"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_sentence(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, data))


@pytest.mark.parametrize("values", [{}, VALUES], ids=["only the split", "facts"])
def test_a_part_that_is_not_the_first_names_the_first(values: Mapping[str, object], tmp_path: Path) -> None:
    """Such a part usually has the numbers of the split, and no facts about the model."""
    second = tmp_path / "big-00002-of-00003.gguf"
    second.write_bytes(gguf_bytes({**values, "split.no": 1, "split.count": 3}))
    assert "is file 2 of 3 files of a model: name the first, big-00001-of-00003.gguf" in refusal(second)


def test_a_later_part_with_impossible_numbers_in_its_name_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "big-00002-of-00000.gguf"
    part.write_bytes(gguf_bytes({**VALUES, "split.no": 1, "split.count": 3}))
    assert "is file 2 of 3 files of a model" in refusal(part)


@pytest.mark.parametrize("tensors", [0, 2])
def test_the_first_of_several_files_is_read(tensors: int, tmp_path: Path) -> None:
    data = gguf_bytes({**VALUES, "split.no": 0, "split.count": 3}, tensors=tensors)
    assert read_header(written(tmp_path, data)).parts == 3


def test_a_file_that_was_cut_anywhere_before_its_last_tensor_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes()
    for length in range(4, len(whole) - 256):
        assert "cut off" in refusal(written(tmp_path, whole[:length])), length


def test_a_folder_a_missing_file_a_pipe_and_an_unreadable_file_are_told_apart(tmp_path: Path) -> None:
    assert "is a folder: name the GGUF file in it" in refusal(tmp_path)
    assert "is missing" in refusal(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a plain file" in refusal(tmp_path / "pipe.gguf")
    if os.geteuid():
        path = written(tmp_path, gguf_bytes())
        path.chmod(0)
        assert "cannot be read" in refusal(path)


@hypothesis_settings(max_examples=examples(400), deadline=None)
@given(at=st.integers(0, len(gguf_bytes()) - 1), put=st.binary(min_size=1, max_size=12))
def test_whatever_stands_in_a_header_the_file_is_read_or_refused(
    at: int, put: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = gguf_bytes()
    path = written(tmp_path_factory.getbasetemp(), whole[:at] + put + whole[at + len(put) :])
    try:
        header = read_header(path)
    except ModelError:
        return
    assert header.context_length >= 0
    assert header.cache_bytes_per_token >= 0


@pytest.mark.parametrize(
    ("values", "plausible"),
    [
        ({}, True),
        ({"llama.block_count": 3}, False),
        ({"llama.block_count": 2**31 - 1}, False),
        ({"llama.embedding_length": 65}, False),
        ({"llama.feed_forward_length": 2**31 - 1}, False),
        ({"llama.vocab_size": 2**31 - 1}, False),
        ({"llama.expert_count": 2**31 - 1}, False),
        ({"llama.attention.head_count": 2**31 - 1}, False),
        ({"llama.attention.key_length": 2**31 - 1}, False),
    ],
)
def test_numbers_that_no_tensor_has_are_noticed(
    tmp_path: Path, values: dict[str, int], plausible: bool
) -> None:
    assert read_header(written(tmp_path, gguf_bytes({**VALUES, **values}))).is_plausible is plausible


def test_a_header_of_endless_length_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """The file is mostly holes, so that it takes no space on the disk or on its way."""
    path, size = tmp_path / "model.gguf", 1 << 20
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 4096))
        for number in range(1000):
            file.write(text(f"key{number}") + struct.pack("<IQ", 8, size))
            file.seek(size, os.SEEK_CUR)
        file.truncate()
    assert "too long" in refusal(path)
