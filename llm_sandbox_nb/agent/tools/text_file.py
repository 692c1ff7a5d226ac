"""Lossless reading and writing of text files in any encoding and with any line ends, and diffs of changed files."""

from __future__ import annotations

import asyncio
import codecs
import re
from dataclasses import dataclass, replace
from itertools import islice

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.contract import Changes, FileChange
from llm_sandbox_nb.trajectory.events import FileDiff, clean_text
from llm_sandbox_nb.trajectory.unified_diff import COMPARED_BYTES, unified

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# These encodings have no shift states and no byte order, so an edit does not change bytes in other parts of the file.
_PREFERRED_ENCODINGS = ("cp1252", "cp1251", "cp932", "gb18030", "cp949", "big5")
_UNSUITED_ENCODING = re.compile(r"utf_?(7|16|32)|iso2022|hz|idna|punycode")
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SAMPLE_BYTES = 256 * 1024


class NotTextError(LLMSandboxError):
    """Error for a binary file."""


class NotEncodableError(LLMSandboxError):
    """Error for a character that the file's encoding lacks. The message is the character."""


@dataclass(frozen=True)
class TextFile:
    """Content of a text file. If the text is unchanged, `encode` returns exactly the bytes of the file."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"

    @property
    def crlf(self) -> bool:
        """True if every line ends with CR LF."""
        return "\r\n" in self.text and self.text.count("\r\n") == self.text.count("\n")

    def with_text(self, text: str) -> TextFile:
        return replace(self, text=text)

    def encode(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            NotEncodableError: if the text has a character that the encoding lacks.
        """
        try:
            return self.mark + self.text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            raise NotEncodableError(error.object[error.start]) from error


def decode_text(data: bytes) -> TextFile:
    """Decode the bytes of a file.

    The encoding is that of a byte order mark, or else UTF-8, or else a guess. A guess is used only if encoding the text
    returns the same bytes. Otherwise, the file is read as UTF-8, and all bytes that are not UTF-8 are kept.

    Raises:
        NotTextError: if the file is binary.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark) and (file := _exact(data[len(mark) :], encoding, mark)):
            return file
    if b"\x00" in data:
        raise NotTextError
    file = _exact(data, "utf-8")
    if file is None:
        sample = data[:_SAMPLE_BYTES]
        if len(_CONTROL_CHARACTER.findall(sample)) * 50 > len(sample):  # more than 2 %
            raise NotTextError
        file = _guess(data) or TextFile(data.decode("utf-8", "surrogateescape"), errors="surrogateescape")
    return file


def _exact(data: bytes, encoding: str, mark: bytes = b"") -> TextFile | None:
    try:
        text = data.decode(encoding)
        return TextFile(text, encoding, mark) if text.encode(encoding) == data else None
    except UnicodeError:
        return None


def _guess(data: bytes) -> TextFile | None:
    import charset_normalizer

    odd = next((place for place, byte in enumerate(data) if byte > 127), 0)
    start = max(0, odd - _SAMPLE_BYTES // 2)
    matches = charset_normalizer.from_bytes(data[start : start + _SAMPLE_BYTES])
    best = matches.best()
    if best is None:
        return None
    tied = [match for match in matches if match.chaos <= best.chaos and match.coherence >= best.coherence]
    names = {name for match in tied for name in (match.encoding, *match.could_be_from_charset)}
    for name in (*(name for name in _PREFERRED_ENCODINGS if name in names), best.encoding):
        if not _UNSUITED_ENCODING.search(name) and (file := _exact(data, name)):
            return file
    return None


def count_lines(text: str) -> int:
    """Count the lines like an editor, where text after the last line end is a line too."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def to_crlf(text: str) -> str:
    """Replace each LF that does not follow a CR by CR LF."""
    return re.sub(r"(?<!\r)\n", "\r\n", text)


def occurrences(text: str, part: str, limit: int = 1000) -> list[int]:
    """Return the places of `part` in `text`, including overlapping places. Return at most `limit` places."""
    places: list[int] = []
    place = text.find(part)
    while place >= 0 and len(places) < limit:
        places.append(place)
        place = text.find(part, place + 1)
    return places


def replace_once(file: TextFile, old: str, new: str) -> tuple[TextFile | None, list[int]]:
    """Replace the only occurrence of `old`. Return the new file, and the places of all occurrences.

    If there is no occurrence or more than one, the new file is None.

    In a file whose lines all end with CR LF, an LF in `old` and `new` stands for CR LF. In a file with mixed line ends,
    `old` is searched unchanged first, and then with CR LF.
    """
    if file.crlf:
        old, new = to_crlf(old), to_crlf(new)
    places = occurrences(file.text, old)
    if not places and (changed := to_crlf(old)) != old:
        places, old, new = occurrences(file.text, changed), changed, to_crlf(new)
    if len(places) != 1:
        return None, places
    text = file.text[: places[0]] + new + file.text[places[0] + len(old) :]
    return file.with_text(text), places


def replace_all(file: TextFile, old: str, new: str, limit: int) -> tuple[TextFile | None, int]:
    """Replace all occurrences of `old`. Return the new file and the count. See `replace_once` for line ends.

    If the new file would have more than `limit` characters, it is None.
    """
    if file.crlf:
        old, new = to_crlf(old), to_crlf(new)
    if old not in file.text and (changed := to_crlf(old)) in file.text:
        old, new = changed, to_crlf(new)
    count = file.text.count(old)
    if len(file.text) + count * (len(new) - len(old)) > limit:
        return None, count
    return file.with_text(file.text.replace(old, new)), count


def insert_after(file: TextFile, line: int, new: str) -> TextFile:
    """Insert `new` as complete lines after line number `line`, with the file's line ends. 0 inserts at the beginning.

    If the file does not end with a line end, no line end is added after lines that are inserted at its end.
    """
    end = "\r\n" if file.crlf else "\n"
    new = to_crlf(new) if file.crlf else new
    place = _line_end(file.text, line)
    before, after = file.text[:place], file.text[place:]
    if before and not before.endswith("\n"):
        return file.with_text(before + end + new)
    return file.with_text(before + (new if new.endswith("\n") else new + end) + after)


def _line_end(text: str, line: int) -> int:
    place = 0
    for _ in range(line):
        found = text.find("\n", place)
        if found < 0:
            return len(text)
        place = found + 1
    return place


DIFF_CHARACTERS = 64 * 1024
"""Maximum number of characters of all diffs of a call together."""
CHANGED_FILES = 500
"""Maximum number of changed files that the record of a call names."""
_MAX_PATH_CHARACTERS = 4096
"""Maximum characters of a path that the record of a call names. A sandbox may report paths of many megabytes, and no
reader reads a record with so long lines."""
_MAX_INLINE_DIFF_BYTES = 32 * 1024
"""Maximum bytes of all files whose diffs are made in the event loop. More bytes would block the loop, so a thread makes
the diffs."""


async def file_diffs(changes: Changes) -> tuple[list[FileDiff], str]:
    """Return the changed files for the record, and a text about changes that were left out."""
    named = (file for file in changes.files if len(file.path) <= _MAX_PATH_CHARACTERS)
    files = tuple(islice(named, CHANGED_FILES))
    if sum(len(file.before or b"") + len(file.after or b"") for file in files) <= _MAX_INLINE_DIFF_BYTES:
        diffs = _all(files)
    else:
        diffs = await asyncio.to_thread(_all, files)
    more = len(changes.files) - len(files)
    left_out = f"{more} more changed files are not named." if more else ""
    return diffs, " ".join(filter(None, (changes.incomplete, left_out)))


def _all(files: tuple[FileChange, ...]) -> list[FileDiff]:
    room, diffs = DIFF_CHARACTERS, []
    for file in files:
        diffs.append(diff := file_diff(file, room))
        room -= len(diff.diff or "")
    return diffs


def file_diff(change: FileChange, room: int = DIFF_CHARACTERS) -> FileDiff:
    """Describe a changed file. Include a unified diff if both versions are text and not too large."""
    made = FileDiff(
        path=clean_text(change.path), kind=change.kind, size=change.size, size_before=change.size_before
    )
    before = b"" if change.kind == "added" else change.before
    after = b"" if change.kind == "deleted" else change.after
    made.lines_before, made.lines = _lines(before), _lines(after)
    if before is None or after is None:
        made.note = "binary, or too large for a diff"
    elif len(before) + len(after) > COMPARED_BYTES:
        made.note = "too large for a diff"
    elif room <= 0:
        made.note = "too many changes for a diff of each"
    else:
        try:
            made.diff, made.note = unified(made.path, _text(before), _text(after), room)
        except NotTextError:
            made.note = "binary"
    return made


def _lines(data: bytes | None) -> int | None:
    return None if data is None else data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def _text(data: bytes) -> str:
    return str(clean_text(decode_text(data).text))
