"""The editor against a plain Python model of its commands, over generated files: bytes in, bytes out."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_sandbox import MemorySandbox
from support import examples

from llm_sandbox_nb.agent.tools.str_replace_editor import Editor, EditorError
from llm_sandbox_nb.agent.tools.text_file import NotTextError, decode_text

ALPHABET = st.one_of(
    st.sampled_from("ab \t'\"\\$`-{}"),
    st.sampled_from(["\r", "\x0c", "\x1b", "\u2028", "\x85", "é", "ß", "漢", "😀"]),
)
LINES = st.lists(st.text(ALPHABET, max_size=6), max_size=8)
NAMES = st.text(st.sampled_from("ab '\"$;*?\\\n\té😀-"), min_size=1, max_size=8).filter(
    lambda name: name.strip(" .") != ""
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """LF, CR LF or mixed line ends, with or without one at the end."""
    lines = draw(LINES)
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"]]))
    text = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    return text + draw(st.sampled_from(["", "end"]))


@st.composite
def text_and_part(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and often a piece of it (as a model would write it: with LF)."""
    text = draw(texts())
    if not text or draw(st.integers(0, 4)) == 0:
        return text, draw(st.text(ALPHABET, max_size=4))
    start = draw(st.integers(0, len(text) - 1))
    part = text[start : draw(st.integers(start + 1, len(text)))]
    return text, part.replace("\r\n", "\n") if draw(st.booleans()) else part


def all_crlf(text: str) -> bool:
    return "\r\n" in text and "\n" not in text.replace("\r\n", "")


def as_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def starts(text: str, part: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(part, place)] if part else []


def model_replace(text: str, old: str, new: str) -> str | None:
    if not old or old == new:
        return None
    if all_crlf(text):
        old, new = as_crlf(old), as_crlf(new)
    elif not starts(text, old):
        old, new = as_crlf(old), as_crlf(new) if as_crlf(old) != old else new
    found = starts(text, old)
    return text[: found[0]] + new + text[found[0] + len(old) :] if len(found) == 1 else None


def model_insert(text: str, line: int, new: str) -> str | None:
    end = "\r\n" if all_crlf(text) else "\n"
    new = as_crlf(new) if all_crlf(text) else new
    lines = text.split("\n")
    pieces = [piece + "\n" for piece in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    if not 0 <= line <= len(pieces):
        return None
    if line == len(pieces) and pieces and not pieces[-1].endswith("\n"):
        return text + end + new
    return "".join(pieces[:line]) + new + ("" if new.endswith("\n") else end) + "".join(pieces[line:])


def apply(command: str, name: str, data: bytes | None, *arguments: object) -> bytes | None:
    path = f"/testbed/{name}"
    box = MemorySandbox({} if data is None else {path: data, "/testbed/bystander": b"untouched"})
    try:
        asyncio.run(getattr(Editor(box), command)(path, *arguments))
    except EditorError:
        assert box.writes == 0
    if data is not None:
        assert box.files.pop("/testbed/bystander") == b"untouched"
        assert set(box.files) == {path}
    return box.files.get(path)


@settings(max_examples=examples(1500))
@given(text_and_part(), texts(), ENCODINGS, NAMES)
def test_replace_is_the_model(pair: tuple[str, str], new: str, encoding: str, name: str) -> None:
    text, old = pair
    expected = model_replace(text, old, new)
    result = apply("str_replace", name, text.encode(encoding), old, new)
    assert result == (text if expected is None else expected).encode(encoding)


@settings(max_examples=examples(1500))
@given(texts(), st.integers(-1, 10), texts(), ENCODINGS, NAMES)
def test_insert_is_the_model(text: str, line: int, new: str, encoding: str, name: str) -> None:
    expected = model_insert(text, line, new)
    result = apply("insert", name, text.encode(encoding), line, new)
    assert result == (text if expected is None else expected).encode(encoding)


@settings(max_examples=examples(500))
@given(texts(), NAMES)
def test_create_is_the_text(text: str, name: str) -> None:
    assert apply("create", name, None, text) == text.encode()


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), texts(), NAMES)
def test_create_never_changes_what_is_there(data: bytes, text: str, name: str) -> None:
    assert apply("create", name, data, text) == data


@settings(max_examples=examples(1500))
@given(st.binary(max_size=120))
def test_what_is_read_as_text_is_written_back_the_same(data: bytes) -> None:
    try:
        file = decode_text(data)
    except NotTextError:
        return
    assert file.encode() == data


@settings(max_examples=examples(800))
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_bytes_in_any_encoding_stay_where_nothing_was_edited(before: bytes, after: bytes) -> None:
    """Around a line that is replaced, every byte stays, whatever the encoding was taken for."""
    before, after = before.replace(b"\x00", b"x") + b"\n", b"\n" + after.replace(b"\x00", b"x")
    if before.startswith((b"\xff\xfe", b"\xfe\xff")):
        before = b"." + before
    data = before + b"UNIQUE" + after
    changed = apply("str_replace", "file", data, "UNIQUE", "replaced")
    assert changed in (data, before + b"replaced" + after)


@settings(max_examples=examples(400))
@given(texts(), st.integers(1, 12), st.integers(1, 12))
def test_view_shows_the_lines(text: str, first: int, last: int) -> None:
    box = MemorySandbox({"/testbed/file": text.encode()})
    lines = text.split("\n")[: text.count("\n") + (not text.endswith("\n") and bool(text))]
    if not 1 <= first <= last <= len(lines):
        return
    shown = asyncio.run(Editor(box).view("/testbed/file", [first, last]))
    expected = [f"{number:6}\t{lines[number - 1].removesuffix(chr(13))}" for number in range(first, last + 1)]
    assert shown.split("\n", 1)[1] == "\n".join(expected)
