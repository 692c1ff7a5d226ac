"""Lines of the executor's answers: each value is checked alone, whatever the others are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_sandbox_nb.sandbox.contract import FileChange, FileEntry
from llm_sandbox_nb.sandbox.errors import SandboxError
from llm_sandbox_nb.sandbox.protocol.answers import changes_of, file_entry, raise_error
from llm_sandbox_nb.sandbox.protocol.channel import last_line
from llm_sandbox_nb.sandbox.protocol.frames import ProtocolError

ENTRY = ["/a", "file", 3, 0o644, 1.5]
CHANGE = ["/a", "modified", 3, "b2xk", "bmV3", 4]
NO_PATH = [None, 7, "/a\0b", "\ud800"]
NO_COUNT = [None, -1, 1.5, "3", True, 2**63, [3]]
NO_TIME = [None, "1", True, 1e300, 10**400, [1.5]]
NO_BASE64 = [7, "?", "b2x", ["b2xk"]]


def with_value(row: list[Any], place: int, value: Any) -> bytes:
    return json.dumps([*row[:place], value, *row[place + 1 :]]).encode()


def test_lines_as_they_should_be() -> None:
    assert file_entry(json.dumps(ENTRY).encode()) == FileEntry("/a", "file", 3, 0o644, 1.5)
    rows = [CHANGE, [*CHANGE[:3], None, None, None]]
    changes = changes_of([json.dumps(row).encode() for row in rows], {"incomplete": "x"})
    assert changes.files == (
        FileChange("/a", "modified", 3, b"old", b"new", size_before=4),
        FileChange("/a", "modified", 3, None, None, size_before=None),
    )
    assert changes.incomplete == "x"


@pytest.mark.parametrize(
    ("place", "values"),
    [(0, NO_PATH), (1, [None, "socket", []]), (2, NO_COUNT), (3, NO_COUNT), (4, NO_TIME)],
    ids=["path", "kind", "size", "mode", "time"],
)
def test_a_listing_with_one_wrong_value(place: int, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ProtocolError):
            file_entry(with_value(ENTRY, place, value))


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, NO_PATH),
        (1, [None, "renamed", {}]),
        (2, NO_COUNT),
        (3, NO_BASE64),
        (4, NO_BASE64),
        (5, NO_COUNT[1:]),
    ],
    ids=["path", "kind", "size", "before", "after", "size before"],
)
def test_changes_with_one_wrong_value(place: int, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ProtocolError, match="a line of its changes is invalid"):
            changes_of([json.dumps(CHANGE).encode(), with_value(CHANGE, place, value)], {})


@pytest.mark.parametrize(
    ("kind", "raised", "said"),
    [
        ("timed_out", TimeoutError, "took too long"),
        ("interrupted", InterruptedError, "was interrupted: try it again"),
    ],
)
def test_a_file_operation_that_was_ended_says_why(kind: str, raised: type[OSError], said: str) -> None:
    with pytest.raises(raised, match=said) as caught:
        raise_error({"error": {"kind": kind, "message": "x"}}, "/a")
    assert caught.value.filename == "/a"


@pytest.mark.parametrize("row", [ENTRY[:-1], [*ENTRY, 1], {}, None, "x", 7])
def test_lines_of_another_shape(row: Any) -> None:
    with pytest.raises(ProtocolError):
        file_entry(json.dumps(row).encode())
    with pytest.raises(ProtocolError):
        changes_of([json.dumps(row).encode()], {})


def test_reasons_of_an_executor_control_no_terminal() -> None:
    """They are in errors and in the log, which Python writes to the terminal."""
    hostile = "\x1b]0;title\x07\x1b[2Jwords\x9b31m\u202e"
    with pytest.raises(SandboxError) as raised:
        raise_error({"error": {"kind": "internal", "message": hostile}}, "")
    for text in (str(raised.value), last_line(f"Traceback\n{hostile}")):
        assert "words" in text
        assert text.isprintable()
