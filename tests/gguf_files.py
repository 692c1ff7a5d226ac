"""Small GGUF files for tests: the header is whole, the weights are zeros."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

VALUES: Mapping[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 2048,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.scores": [0.5, 1.5],
}


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + text(value)
        case int():
            return struct.pack("<II", 4, value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case list():
            return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    raise TypeError(value)


def gguf_bytes(values: Mapping[str, Any] = VALUES, *, tensors: int = 2, version: int = 3) -> bytes:
    """A whole file, with so many tensors of 64 numbers."""
    data = b"GGUF" + struct.pack("<IQQ", version, tensors, len(values))
    for name, value in values.items():
        data += text(name) + value_bytes(value)
    for number in range(tensors):
        data += text(f"t{number}") + struct.pack("<IQIQ", 1, 64, 0, 256 * number)
    return data + bytes(-len(data) % 32) + bytes(256 * tensors)
