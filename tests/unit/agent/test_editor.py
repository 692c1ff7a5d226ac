"""The editor against a plain model of its commands, over generated files; and what the model is told."""

from __future__ import annotations

import asyncio
import codecs
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_sandbox import MemorySandbox
from support import examples

from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.agent.tools.file_tools import EditFile
from llm_sandbox_nb.agent.tools.str_replace_editor import MAX_FILE_BYTES, Editor, EditorError
from llm_sandbox_nb.agent.tools.text_file import NotTextError, decode_text
from llm_sandbox_nb.agent.tools.tool import ToolContext

PATH = '/testbed/a b\'s "file".txt'


def editor(data: bytes | None = None, path: str = PATH) -> Editor:
    return Editor(MemorySandbox({} if data is None else {path: data}))


def edited(data: bytes, command: str, *arguments: object) -> bytes:
    tool = editor(data)
    asyncio.run(getattr(tool, command)(PATH, *arguments))
    return tool.box.files[PATH]


def viewed(data: bytes, view_range: list[int] | None = None) -> str:
    return asyncio.run(editor(data).view(PATH, view_range))


def refused(tool: Editor, command: str, *arguments: object) -> str:
    before = dict(tool.box.files)
    with pytest.raises(EditorError) as caught:
        asyncio.run(getattr(tool, command)(*arguments))
    assert tool.box.files == before
    assert tool.box.writes == 0
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


ALPHABET = st.one_of(
    st.sampled_from("ab \t'\"\\$`-{}"),
    st.sampled_from(["\r", "\x0c", "\x1b", "\u2028", "\x85", "é", "ß", "漢", "😀"]),
)
LINES = st.lists(st.text(ALPHABET, max_size=6), max_size=8)
NAMES = st.text(st.sampled_from("ab '\"$;*?\\\n\té😀-"), min_size=1, max_size=8).filter(
    lambda name: name.strip(" .") != ""
)
MARKS = {
    "utf-8": (b"", codecs.BOM_UTF8),
    "utf-16-le": (codecs.BOM_UTF16_LE,),
    "utf-16-be": (codecs.BOM_UTF16_BE,),
    "utf-32-le": (codecs.BOM_UTF32_LE,),
    "utf-32-be": (codecs.BOM_UTF32_BE,),
}
ENCODINGS = st.sampled_from([(mark, encoding) for encoding, marks in MARKS.items() for mark in marks])


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


def apply(command: str, name: str, data: bytes | None, *arguments: object) -> tuple[bytes | None, str]:
    """The file afterwards, and why nothing was done."""
    path, refusal = f"/testbed/{name}", ""
    bystander = {"/testbed/bystander": b"untouched"}
    box = MemorySandbox(bystander if data is None else {path: data, **bystander})
    try:
        asyncio.run(getattr(Editor(box), command)(path, *arguments))
    except EditorError as error:
        refusal = str(error)
        assert "\n" not in refusal.replace(path, "")
    assert box.writes == (not refusal)
    assert box.files.pop("/testbed/bystander") == b"untouched"
    assert set(box.files) <= {path}
    return box.files.get(path), refusal


def why_not_replaced(text: str, old: str, new: str) -> str:
    if not old:
        return "old_str is empty"
    return "are the same" if old == new else " times, at lines " if starts(text, old) else "old_str is "


@settings(max_examples=examples(1500))
@given(text_and_part(), texts(), ENCODINGS, NAMES)
def test_replace_is_the_model(pair: tuple[str, str], new: str, coding: tuple[bytes, str], name: str) -> None:
    (text, old), (mark, encoding) = pair, coding
    expected = model_replace(text, old, new)
    result, refusal = apply("str_replace", name, mark + text.encode(encoding), old, new)
    assert result == mark + (text if expected is None else expected).encode(encoding)
    assert bool(refusal) == (expected is None)
    assert expected is not None or why_not_replaced(text, old, new) in refusal


@settings(max_examples=examples(1500))
@given(texts(), st.integers(-1, 10), texts(), ENCODINGS, NAMES)
def test_insert_is_the_model(text: str, line: int, new: str, coding: tuple[bytes, str], name: str) -> None:
    mark, encoding = coding
    expected = model_insert(text, line, new)
    result, refusal = apply("insert", name, mark + text.encode(encoding), line, new)
    assert result == mark + (text if expected is None else expected).encode(encoding)
    assert ("out of range" in refusal) == (expected is None)


@settings(max_examples=examples(500))
@given(st.none() | st.binary(max_size=200), texts(), NAMES)
def test_create_is_the_text_and_never_changes_what_is_there(data: bytes | None, text: str, name: str) -> None:
    result, refusal = apply("create", name, data, text)
    assert result == (text.encode() if data is None else data)
    assert ("never overwrites" in refusal) == (data is not None)


@settings(max_examples=examples(1500))
@given(st.binary(max_size=120))
def test_what_is_read_as_text_is_written_back_the_same(data: bytes) -> None:
    try:
        file = decode_text(data)
    except NotTextError:
        return
    assert file.encode() == data


def test_an_encoding_is_guessed_where_the_letters_are() -> None:
    """Also when they are far behind a beginning in ASCII, in which a control character may stand."""
    letters = "Съешь же ещё этих мягких французских булок, да выпей чаю.\n" * 3000
    file = decode_text(b"\x7f plain\n" + b"# comment\n" * 50_000 + letters.encode("cp1251"))
    assert file.text.endswith(letters)
    assert file.encoding == "cp1251"


@settings(max_examples=examples(800))
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_bytes_in_any_encoding_stay_where_nothing_was_edited(before: bytes, after: bytes) -> None:
    """Around a line that is replaced, every byte stays, whatever the encoding was taken for."""
    before, after = before.replace(b"\x00", b"x") + b"\n", b"\n" + after.replace(b"\x00", b"x")
    if before.startswith((b"\xff\xfe", b"\xfe\xff")):
        before = b"." + before
    data = before + b"UNIQUE" + after
    changed, _ = apply("str_replace", "file", data, "UNIQUE", "replaced")
    assert changed in (data, before + b"replaced" + after)


@settings(max_examples=examples(400))
@given(texts(), st.integers(-1, 9), st.integers(-2, 12))
def test_view_shows_the_lines(text: str, first: int, last: int) -> None:
    lines = text.split("\n")[: text.count("\n") + (not text.endswith("\n") and bool(text))]
    if not lines:
        assert viewed(text.encode()) == f"{PATH} is empty."
    elif not 1 <= first <= len(lines) or (last != -1 and last < first):
        assert "view_range" in refused(editor(text.encode()), "view", PATH, [first, last])
    else:
        shown = viewed(text.encode(), [first, last])
        last = len(lines) if last == -1 else min(last, len(lines))
        expected = [
            f"{number:6}\t{lines[number - 1].removesuffix(chr(13))}" for number in range(first, last + 1)
        ]
        assert shown.split("\n", 1)[1] == "\n".join(expected)
        assert ("lines end with CR LF" in shown) == all_crlf(text)
        assert ("no line end at the end" in shown) == (not text.endswith("\n"))


@pytest.mark.parametrize("view_range", [[1], [], [1, 2, 3]])
def test_a_view_range_is_two_numbers(view_range: list[int]) -> None:
    assert "view_range takes two numbers" in refused(editor(b"1\n2\n"), "view", PATH, view_range)


def test_view_of_a_long_file_is_bounded_and_says_how_to_go_on() -> None:
    shown = viewed(b"".join(b"line %d\n" % number for number in range(1, 100_001)))
    assert len(shown) < 17_000
    last = shown.rsplit("\n", 1)[1]
    numbered = shown.split("\n")[-2]
    following = int(numbered.split("\t")[0]) + 1
    assert f"view_range, for example [{following}, 100000]" in last
    again = viewed(b"".join(b"line %d\n" % number for number in range(1, 100_001)), [following, 100_000])
    assert again.split("\n")[1] == f"{following:6}\tline {following}"


def test_view_of_one_enormous_line_is_cut() -> None:
    shown = viewed("ä".encode() * 2_500_000)
    assert len(shown) < 17_000
    assert "line cut: it has 2500000 characters" in shown


@pytest.mark.parametrize(
    "data",
    [b"\x89PNG\r\n\x1a\n\x00\x00", b"a\x00b", random.Random(1).randbytes(10_000), b"\xff\x01\x02\x03" * 50],
)
def test_binary_files_are_refused_in_a_sentence(data: bytes) -> None:
    assert "binary" in refused(editor(data), "view", PATH)
    assert "binary" in refused(editor(data), "str_replace", PATH, "a", "b")
    assert "binary" in refused(editor(data), "insert", PATH, 0, "b")


def test_files_that_are_too_large_are_refused() -> None:
    assert "32 MB" in refused(editor(b"a" * (MAX_FILE_BYTES + 1)), "view", PATH)


def test_view_of_a_directory_is_two_levels_deep_without_hidden_names() -> None:
    files = {
        f"/testbed/{name}": b""
        for name in ("b.py", "x/y.txt", "x/deep/er/no.txt", ".git/config", "x/.hid/a", "é f")
    }
    box = MemorySandbox(files, ["/testbed/empty"])
    for path in ("/testbed", "/testbed/", "."):
        shown = asyncio.run(Editor(box).view(path)).split("\n")
        assert "hidden" in shown[0]
        assert shown[1:] == [
            "/testbed/b.py", "/testbed/empty/", "/testbed/x/", "/testbed/x/deep/", "/testbed/x/y.txt",
            "/testbed/é f",
        ]  # fmt: skip
    assert asyncio.run(Editor(box).view("/testbed/empty")).endswith("(nothing)")
    assert "view_range" in refused(Editor(box), "view", "/testbed", [1, 2])
    assert "directory" in refused(Editor(box), "str_replace", "/testbed/x", "a", "b")


def test_view_of_a_hidden_directory_by_name_shows_it() -> None:
    box = MemorySandbox({"/testbed/.git/config": b"", "/testbed/.git/.secret": b""})
    assert asyncio.run(Editor(box).view("/testbed/.git")).split("\n")[1:] == ["/testbed/.git/config"]


def test_view_of_a_large_directory_is_cut() -> None:
    box = MemorySandbox({f"/testbed/{number:05}": b"" for number in range(5000)})
    shown = asyncio.run(Editor(box).view("/testbed"))
    assert shown.count("\n") == 201
    assert "4800 more are not shown" in shown


def test_missing_files_are_errors_and_nothing_is_made() -> None:
    for command, arguments in (("view", ()), ("str_replace", ("a", "b")), ("insert", (0, "a"))):
        assert "does not exist" in refused(editor(), command, "/testbed/no/such file", *arguments)


def test_a_folder_is_not_overwritten() -> None:
    assert "never overwrites" in refused(
        editor(b"old", "/testbed/folder/x"), "create", "/testbed/folder", "new"
    )


def test_create_below_a_file_is_an_error() -> None:
    assert "is a file, not a directory" in refused(editor(b"old"), "create", f"{PATH}/below", "new")


def test_replace_needs_one_place() -> None:
    many = refused(editor(b"x\ny\nx\n\nx x\n"), "str_replace", PATH, "x", "z")
    assert "4 times, at lines 1, 3, 5, 5:" in many
    assert "not in" in refused(editor(b"abc"), "str_replace", PATH, "abd", "z")
    assert "2 times" in refused(editor(b"aaa"), "str_replace", PATH, "aa", "b")


def test_replace_points_to_a_place_that_differs_in_blanks_only() -> None:
    message = refused(editor(b"def f():\n\treturn  1\n"), "str_replace", PATH, "    return 1", "    return 2")
    assert "Line 2 differs only in blanks" in message
    content = b"a\n" * 200_000
    message = refused(editor(content), "str_replace", PATH, "a \n" * 100_000 + "b\n", "c")
    assert "View the file and copy it exactly" in message, "and it takes no quadratic time"


def test_replace_shows_four_lines_around() -> None:
    tool = editor(b"".join(b"%d\n" % number for number in range(1, 21)))
    shown = asyncio.run(tool.str_replace(PATH, "10\n", "ten\nten more\n")).split("\n")
    assert shown[1] == "     6\t6"
    assert shown[5:7] == ["    10\tten", "    11\tten more"]
    assert shown[-1] == "    16\t15"


TEXT = "first line\ngrüße aus münchen, schöne äpfel\nlast line\n"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", TEXT),
        ("cp1251", "привет мир, как дела? сегодня хорошая погода, и мы идём гулять в парк\n"),
        ("shift_jis", "こんにちは世界。これはテストです\n"),
        ("gbk", "你好世界，这是一个测试\n"),
    ],
)
def test_other_encodings_are_recognised(encoding: str, text: str) -> None:
    data = b"ascii = 1\n" + text.encode(encoding)
    assert text.split("\n")[0] in viewed(data)
    assert edited(data, "str_replace", "ascii = 1", "ascii = 2") == data.replace(b"1", b"2", 1)
    assert edited(data, "insert", 1, text[:5]) == data.replace(
        b"\n", b"\n" + text[:5].encode(encoding) + b"\n", 1
    )


@pytest.mark.parametrize("data", [b"caf\xe9\n", b"price: 5\x80\n", b"utf-8 \xc3\xa4 and a stray \xff byte\n"])
def test_bytes_of_no_sure_encoding_stay_as_they_are(data: bytes) -> None:
    assert edited(data, "insert", 1, "plain") == data + b"plain\n"


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    data = TEXT.encode("latin-1")
    message = refused(editor(data), "str_replace", PATH, "first", "→")
    assert "→" in message
    assert "iconv" in message


def test_five_megabytes_are_edited_fast() -> None:
    data = b"".join(b"line %d\twith a tab\r\n" % number for number in range(220_000))
    assert len(data) > 5_000_000
    started = time.process_time()
    assert edited(data, "str_replace", "line 199999\t", "changed\t") == data.replace(
        b"line 199999\t", b"changed\t"
    )
    assert edited(data, "insert", 100_000, "new") == data.replace(
        b"line 100000\t", b"new\r\nline 100000\t", 1
    )
    assert time.process_time() - started < 5


def test_replacing_everywhere_makes_no_huge_file() -> None:
    box = MemorySandbox({PATH: b"a" * 100_000})
    arguments = {"path": PATH, "old_string": "a", "new_string": "b" * 1_000_000, "replace_all": True}
    context = ToolContext(box, RunOptions())
    outcome = asyncio.run(EditFile().execute(arguments, context))
    assert outcome.observation == f"Error: {PATH} would be larger than 32 MB: replace less."
    outcome = asyncio.run(EditFile().execute({**arguments, "new_string": "bc"}, context))
    assert (outcome.error, box.files[PATH]) == (None, b"bc" * 100_000)
