"""The editor's commands one by one: what they do to the bytes, and what the model is told."""

from __future__ import annotations

import asyncio
import codecs
import random
import time

import pytest
from memory_sandbox import MemorySandbox

from llm_sandbox_nb.agent.tools.str_replace_editor import READ_LIMIT, Editor, EditorError

PATH = '/testbed/a b\'s "file".txt'


def editor(data: bytes | None = None, path: str = PATH) -> Editor:
    return Editor(MemorySandbox({} if data is None else {path: data}))


def content(tool: Editor, path: str = PATH) -> bytes:
    return tool.box.files[path]


def replaced(data: bytes, old: str, new: str) -> bytes:
    tool = editor(data)
    asyncio.run(tool.str_replace(PATH, old, new))
    return content(tool)


def inserted(data: bytes, line: int, new: str) -> bytes:
    tool = editor(data)
    asyncio.run(tool.insert(PATH, line, new))
    return content(tool)


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


# --- view ---


def test_view_numbers_lines_as_cat_does() -> None:
    assert viewed(b"one\n\ttwo\n\nfour\n").split("\n")[1:] == [
        "     1\tone",
        "     2\t\ttwo",
        "     3\t",
        "     4\tfour",
    ]


def test_view_tells_line_ends_and_a_missing_final_one() -> None:
    shown = viewed(b"a\r\nb")
    assert "lines end with CR LF" in shown
    assert "no line end at the end" in shown
    assert shown.split("\n")[1:] == ["     1\ta", "     2\tb"]


@pytest.mark.parametrize(
    ("view_range", "numbers"), [([2, 3], [2, 3]), ([3, -1], [3, 4, 5]), ([5, 5], [5]), ([4, 99], [4, 5])]
)
def test_view_range(view_range: list[int], numbers: list[int]) -> None:
    rows = viewed(b"1\n2\n3\n4\n5\n", view_range).split("\n")[1:]
    assert rows == [f"{number:6}\t{number}" for number in numbers]


@pytest.mark.parametrize(
    "view_range", [[0, 1], [6, -1], [3, 2], [-1, -1], [1], [], [1, 2, 3], [2, 0], [2, -2]]
)
def test_view_range_outside_is_an_error(view_range: list[int]) -> None:
    assert "view_range" in refused(editor(b"1\n2\n3\n4\n5\n"), "view", PATH, view_range)


def test_view_of_an_empty_file() -> None:
    assert viewed(b"") == f"{PATH} is empty."


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
    assert "32 MB" in refused(editor(b"a" * (READ_LIMIT + 1)), "view", PATH)


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
            "/testbed/b.py",
            "/testbed/empty/",
            "/testbed/x/",
            "/testbed/x/deep/",
            "/testbed/x/y.txt",
            "/testbed/é f",
        ]
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


# --- create ---


@pytest.mark.parametrize(
    "text", ["", "-n", "a\tb\r\nc", "no end", "'\"$(touch x)`\\", "\n\n", "ünïcödé 😀\n", "x" * 5_000_000]
)
def test_create_writes_exactly_the_text(text: str) -> None:
    tool = editor()
    asyncio.run(tool.create(PATH, text))
    assert content(tool) == text.encode()


def test_create_never_overwrites() -> None:
    assert "never overwrites" in refused(editor(b"old"), "create", PATH, "new")
    assert "never overwrites" in refused(
        editor(b"old", "/testbed/folder/x"), "create", "/testbed/folder", "new"
    )


def test_create_below_a_file_is_an_error() -> None:
    assert "is a file, not a directory" in refused(editor(b"old"), "create", f"{PATH}/below", "new")


# --- str_replace ---


def test_replace_touches_nothing_else() -> None:
    data = b"\tkeep\ttabs \r\nmixed\nends\r\n\x1b[31mcolour\x1b[0m\n  old  \nno end"
    assert replaced(data, "old", "new") == data.replace(b"old", b"new")


def test_replace_in_a_file_of_crlf_keeps_them() -> None:
    assert replaced(b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n") == b"x\r\ny\r\nz\r\nc\r\n"
    assert replaced(b"a\r\nb\r\nc\r\n", "b", "x\ny") == b"a\r\nx\r\ny\r\nc\r\n"
    assert replaced(b"a\r\nb\r\nc", "a\r\nb", "x\r\ny") == b"x\r\ny\r\nc"
    assert replaced(b"a\r\nb\r\nc\r\n", "\nb", "\nx") == b"a\r\nx\r\nc\r\n"


def test_replace_with_mixed_line_ends_takes_old_str_as_it_is_first() -> None:
    assert replaced(b"a\nb\nc\r\nd\r\n", "a\nb", "x\ny") == b"x\ny\nc\r\nd\r\n"
    assert replaced(b"a\nb\nc\r\nd\r\n", "c\nd", "x\ny") == b"a\nb\nx\r\ny\r\n"


def test_replace_by_nothing_removes() -> None:
    assert replaced(b"a b c", " b", "") == b"a c"
    assert replaced(b"all", "all", "") == b""


def test_replace_needs_one_place() -> None:
    many = refused(editor(b"x\ny\nx\n\nx x\n"), "str_replace", PATH, "x", "z")
    assert "4 times, at lines 1, 3, 5, 5:" in many
    assert "not in" in refused(editor(b"abc"), "str_replace", PATH, "abd", "z")
    assert "2 times" in refused(editor(b"aaa"), "str_replace", PATH, "aa", "b")
    assert "empty" in refused(editor(b"abc"), "str_replace", PATH, "", "z")
    assert "same" in refused(editor(b"abc"), "str_replace", PATH, "a", "a")


def test_replace_points_to_a_place_that_differs_in_blanks_only() -> None:
    message = refused(editor(b"def f():\n\treturn  1\n"), "str_replace", PATH, "    return 1", "    return 2")
    assert "Line 2 differs only in blanks" in message


def test_replace_shows_four_lines_around() -> None:
    tool = editor(b"".join(b"%d\n" % number for number in range(1, 21)))
    shown = asyncio.run(tool.str_replace(PATH, "10\n", "ten\nten more\n")).split("\n")
    assert shown[1] == "     6\t6"
    assert shown[5:7] == ["    10\tten", "    11\tten more"]
    assert shown[-1] == "    16\t15"


# --- insert ---


@pytest.mark.parametrize(
    ("data", "line", "new", "result"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\ny", b"a\nx\ny\nb\n"),
        (b"a\nb\n", 1, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"a\nb", 2, "x\n", b"a\nb\nx\n"),
        (b"a\nb", 1, "x", b"a\nx\nb"),
        (b"", 0, "x", b"x\n"),
        (b"a\n", 1, "", b"a\n\n"),
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\r\nb", 2, "x", b"a\r\nb\r\nx"),
        (b"\ta\n", 0, "\tx", b"\tx\n\ta\n"),
    ],
)
def test_insert(data: bytes, line: int, new: str, result: bytes) -> None:
    assert inserted(data, line, new) == result


@pytest.mark.parametrize("line", [-1, 3, 1000])
def test_insert_outside_is_an_error(line: int) -> None:
    assert "out of range" in refused(editor(b"a\nb\n"), "insert", PATH, line, "x")


# --- encodings ---

TEXT = "first line\ngrüße aus münchen, schöne äpfel\nlast line\n"


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
        (b"", "latin-1"),
    ],
)
def test_encodings_are_kept(mark: bytes, encoding: str) -> None:
    data = mark + TEXT.encode(encoding)
    assert "grüße aus münchen, schöne äpfel" in viewed(data)
    assert replaced(data, "äpfel", "öle") == mark + TEXT.replace("äpfel", "öle").encode(encoding)
    assert inserted(data, 1, "ein ü") == mark + TEXT.replace("\n", "\nein ü\n", 1).encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "привет мир, как дела? сегодня хорошая погода, и мы идём гулять в парк\n"),
        ("shift_jis", "こんにちは世界。これはテストです\n"),
        ("gbk", "你好世界，这是一个测试\n"),
    ],
)
def test_other_encodings_are_recognised(encoding: str, text: str) -> None:
    data = b"ascii = 1\n" + text.encode(encoding)
    assert text.strip() in viewed(data)
    assert replaced(data, "ascii = 1", "ascii = 2") == data.replace(b"1", b"2", 1)


@pytest.mark.parametrize("data", [b"caf\xe9\n", b"price: 5\x80\n", b"utf-8 \xc3\xa4 and a stray \xff byte\n"])
def test_bytes_of_no_sure_encoding_stay_as_they_are(data: bytes) -> None:
    assert inserted(data, 1, "plain") == data + b"plain\n"


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    data = TEXT.encode("latin-1")
    message = refused(editor(data), "str_replace", PATH, "first", "→")
    assert "→" in message
    assert "iconv" in message


def test_five_megabytes_are_edited_fast() -> None:
    data = b"".join(b"line %d\twith a tab\r\n" % number for number in range(220_000))
    assert len(data) > 5_000_000
    started = time.process_time()
    assert replaced(data, "line 199999\t", "changed\t") == data.replace(b"line 199999\t", b"changed\t")
    assert inserted(data, 100_000, "new") == data.replace(b"line 100000\t", b"new\r\nline 100000\t", 1)
    assert time.process_time() - started < 5
