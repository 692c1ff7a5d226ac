"""File operations by name. Compiled only when the first is asked for."""

from __future__ import annotations

from .files import list_files, read, write
from .remembering import describe
from .trees import pack, unpack

OPERATIONS = {
    "read": read,
    "write": write,
    "list": list_files,
    "pack": pack,
    "unpack": unpack,
    "describe": describe,
}
