"""Reader of a GGUF file's header: facts about the model, and a check that the file is complete."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.model.contract import ModelError

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PART_NAME = re.compile(r"(.*-)\d{5}(-of-(?!00000)(\d{5})\.gguf)", re.IGNORECASE | re.DOTALL)
_MAX_KEYS = 4096
_MAX_TENSORS = 65_536
_MAX_HEADER_BYTES = 256 << 20
"""Maximum size of a header. Without the model's vocabulary, a header usually has less than 2 MB."""
_MAX_TEXT_BYTES = 1 << 20
"""Maximum length of a text. Chat templates may be long."""
_MAX_LIST_ITEMS = 2_000_000
"""Maximum length of a list. The largest vocabularies have 300,000 words."""
_WIDTHS = (
    "embedding_length", "feed_forward_length", "vocab_size", "expert_count", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
)  # fmt: skip
"""Names of header values that are dimensions of a tensor, or divisors of a dimension. So the largest dimension in a
valid file is at least as large as each of these values."""


class _NotGgufError(LLMSandboxError):
    """Error for a file that is not a valid GGUF file. The message continues a sentence that begins with the path."""


@dataclass(frozen=True)
class GgufHeader:
    """Facts about a model that the header of its file gives."""

    architecture: str
    title: str
    values: Mapping[str, Any]
    tensors: int
    largest_dimension: int

    @property
    def is_plausible(self) -> bool:
        """True if the file has a tensor for each layer, and a dimension at least as large as each of `_WIDTHS`.

        A file with a false header could use up the memory: a program may allocate memory for the numbers in the header
        before it reads the tensors.
        """
        widest = max(map(self._number, _WIDTHS))
        return self._number("block_count") <= self.tensors and widest <= self.largest_dimension

    @property
    def context_length(self) -> int:
        """Context length in tokens that the model was trained for, or 0 if the length is unknown."""
        return self._number("context_length")

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of the engine's cache per token of a conversation, with 16-bit numbers.

        If the layers of the model differ, the number is an upper bound.
        """
        layers, heads = self._number("block_count"), self._number("attention.head_count")
        of_cache = self._number("attention.head_count_kv") or heads
        each = self._number("embedding_length") // heads if heads else 0
        key = self._number("attention.key_length") or each
        value = self._number("attention.value_length") or each
        return layers * of_cache * (key + value) * 2

    @property
    def parts(self) -> int:
        """Number of files into which the model was split."""
        return parts_of(self.values)

    def _number(self, name: str) -> int:
        found = self.values.get(f"{self.architecture}.{name}")
        return found if isinstance(found, int) and 0 < found < 1 << 40 else 0


def parts_of(values: Mapping[str, Any]) -> int:
    """Return the number of files into which a model was split, by the values of its header."""
    count = values.get("split.count")
    return count if isinstance(count, int) and count > 1 else 1


def read_header(path: Path) -> GgufHeader:
    """Read the header of a model's file.

    Raises:
        ModelError: if the file cannot be read, is not a complete GGUF file, or has no language model.
    """
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder: name the GGUF file in it.", kind="setup")
        if not path.is_file():
            kind = "not a plain file" if path.exists() else "missing"
            raise ModelError(f"The model's file {path} is {kind}: check the path.", kind="not_found")
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size).header()
    except OSError as error:
        raise ModelError(
            f"The model's file {path} cannot be read ({error.strerror or error}): check its permissions.",
            kind="setup",
        ) from error
    except _NotGgufError as error:
        raise ModelError(f"{path} {error}", kind="setup") from error


def part_names(name: str) -> list[str]:
    """Return the names of all files of a model, in order, by the name of one. Without numbers it is the only one.

    If its number is higher than the number of files, or 0, `name` is not in the list.
    """
    part = _PART_NAME.fullmatch(name)
    if part is None:
        return [name]
    return [f"{part[1]}{number:05}{part[2]}" for number in range(1, int(part[3]) + 1)]


def part_files(file: Path, header: GgufHeader) -> list[Path]:
    """Return the files of a model. `file` is the first, or the only one.

    Raises:
        ModelError: if the name of the first file does not fit its header, or another file is missing.
    """
    if header.parts == 1:
        return [file]
    names = part_names(file.name)
    if len(names) != header.parts or names[0] != file.name:
        raise ModelError(
            f"{file.name} is the first of {header.parts} files of a model: give it its original name again, "
            f"NAME-00001-of-{header.parts:05}.gguf.",
            kind="setup",
        )
    files = [file.with_name(name) for name in names]
    for other in files:
        if not other.is_file():
            raise ModelError(
                f"{file.name} is the first of {header.parts} files of a model, and {other.name} is missing: put all "
                "files into one folder.",
                kind="not_found",
            )
    return files


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._largest = 0

    def header(self) -> GgufHeader:
        if self._file.read(4) != _MAGIC:
            raise _NotGgufError("is not a GGUF file: give a model in the format of llama.cpp.")
        if (version := self._number("I")) not in (2, 3):
            raise _NotGgufError(
                f"is a GGUF file of version {version}, but only versions 2 and 3 can be read: convert the model again."
            )
        tensors, keys = self._number("Q"), self._number("Q")
        if keys > _MAX_KEYS or tensors > _MAX_TENSORS:
            raise _NotGgufError("is not a valid GGUF file: its header has impossible numbers.")
        values = {}
        for _ in range(keys):
            if self._file.tell() > _MAX_HEADER_BYTES:
                raise _NotGgufError("is not a valid GGUF file: its header is too long.")
            name = self._text()
            values[name] = self._value(self._number("I"))
        self._check_is_first(values)
        architecture = values.get("general.architecture")
        # The first of several files may have no tensors.
        if not isinstance(architecture, str) or not architecture or not (tensors or parts_of(values) > 1):
            raise _NotGgufError("has no language model: the architecture or the tensors are missing.")
        offsets = [self._tensor() for _ in range(tensors)]
        alignment = values.get("general.alignment")
        alignment = alignment if isinstance(alignment, int) and 0 < alignment <= 1 << 20 else 32
        begin = -(-self._file.tell() // alignment) * alignment
        if offsets and begin + max(offsets) >= self._size:
            raise _cut_off()
        title = values.get("general.name")
        return GgufHeader(
            architecture[:100],
            title[:200] if isinstance(title, str) else "",
            values,
            tensors,
            self._largest,
        )

    def _check_is_first(self, values: Mapping[str, Any]) -> None:
        """Raise an error for a file other than the first of a model in several files. Only the first has all facts."""
        number, count = values.get("split.no"), values.get("split.count")
        if not isinstance(number, int) or number < 1:
            return
        first = part_names(Path(self._file.name).name)[0]
        raise _NotGgufError(
            f"is file {number + 1} of {count} files of a model: name the first, {first}, in a folder with all files."
        )

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._skip_list()
        return self._number(_scalar(kind))

    def _skip_list(self) -> Any:
        """Skip a list in the header. Return the largest number of a short list of numbers, and None for any other list.

        A short list may have one number for each layer of the model.
        """
        kind, count = self._number("I"), self._number("Q")
        if count > _MAX_LIST_ITEMS or kind == _ARRAY:
            raise _NotGgufError(
                "is not a valid GGUF file: a list in its header is too long, or is inside another list."
            )
        if kind == _STRING:
            for _ in range(count):
                self._skip(self._number("Q"))
            return None
        code = _scalar(kind)
        if count > 1024:
            self._skip(count * struct.calcsize(code))
            return None
        return max((self._number(code) for _ in range(count)), default=None)

    def _tensor(self) -> int:
        """Read the description of a tensor. Return the offset of its data from the start of all data."""
        self._text()
        if (dimensions := self._number("I")) > 8:
            raise _NotGgufError("is not a valid GGUF file: a tensor has too many dimensions.")
        self._largest = max(self._largest, *(self._number("Q") for _ in range(dimensions)), 0)
        self._skip(4)
        return int(self._number("Q"))

    def _text(self) -> str:
        length = self._number("Q")
        if length > _MAX_TEXT_BYTES:
            raise _NotGgufError("is not a valid GGUF file: a text in its header is too long.")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        (found,) = struct.unpack(f"<{code}", self._bytes(struct.calcsize(code)))
        return found

    def _bytes(self, length: int) -> bytes:
        found = self._file.read(length)
        if len(found) < length:
            raise _cut_off()
        return found

    def _skip(self, length: int) -> None:
        if length > self._size - self._file.tell():
            raise _cut_off()
        self._file.seek(length, 1)


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise _NotGgufError("is not a valid GGUF file: its header has an unknown type.")
    return _SCALARS[kind]


def _cut_off() -> _NotGgufError:
    return _NotGgufError("is cut off: fetch or copy the file again.")
