"""Checks of the examples' results. The files come from a sandbox, so they are read as data and never executed."""

from __future__ import annotations

import functools
import io
import re
import struct
import wave
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

from llm_sandbox_nb.errors import LLMSandboxError

Files = Mapping[str, bytes]
MAX_FILE_BYTES = 20 * 2**20
"""Maximum size in bytes of a file that is checked."""
_PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


def read_files(folder: Path) -> Files:
    """Return the contents of the files in a folder, by name. Links are left out.

    At most `MAX_FILE_BYTES` + 1 bytes of a file are read. The last byte shows that the file is too large.
    """
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                found[path.name] = file.read(MAX_FILE_BYTES + 1)
    return found


class _WrongError(LLMSandboxError):
    """Error for a result with a fault. The message is a sentence about the fault."""


def _file(files: Files, name: str) -> bytes:
    data = files.get(name)
    if data is None:
        raise _WrongError(f"There is no {name} in the output folder.")
    if len(data) > MAX_FILE_BYTES:
        raise _WrongError(f"{name} is larger than {MAX_FILE_BYTES // 2**20} MiB.")
    return data


def _text(files: Files, name: str = "answer.txt") -> str:
    return _file(files, name).decode("utf-8", "replace").strip()


def _numbers(files: Files, wanted: tuple[float, ...], within: float) -> str:
    found = [
        float(number)
        for number in re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", _text(files)))
    ]
    near = len(found) == len(wanted) and all(
        abs(number - target) <= within for number, target in zip(found, wanted, strict=True)
    )
    return (
        ""
        if near
        else f"The answer is {_text(files)[:60]!r}, and has to be {' and '.join(map(str, wanted))}."
    )


def _check(name: str) -> Callable[[Callable[[Files], str]], Callable[[Files], str]]:
    """Decorate a check of the file `name`. If the file cannot be parsed, the check returns a sentence about that."""

    def decorate(check: Callable[[Files], str]) -> Callable[[Files], str]:
        @functools.wraps(check)
        def checked(files: Files) -> str:
            try:
                return check(files)
            except _WrongError as error:
                return str(error)
            except (ValueError, LookupError, EOFError, struct.error, wave.Error, ElementTree.ParseError,
                    RecursionError) as error:  # fmt: skip
                return f"{name} cannot be read ({' '.join(str(error).split())[:100].rstrip('.')})."

        return checked

    return decorate


@_check("answer.txt")
def math(files: Files) -> str:
    """Check that the answer is 1,072. A program that counts the numbers gives this answer."""
    return _numbers(files, (1072,), 0)


@_check("answer.txt")
def physics(files: Files) -> str:
    """Check that the answer is 4 sqrt(L/g) K(sin(45 degrees)) = 2.368 s."""
    return _numbers(files, (2.368,), 0.0011)


@_check("answer.txt")
def chemistry(files: Files) -> str:
    """Check that the answer is 194.19 g/mol, 28.85 % nitrogen, by the IUPAC abridged atomic masses."""
    return _numbers(files, (194.19, 28.85), 0.031)


@_check("answer.txt")
def biomedicine(files: Files) -> str:
    """Check that the answer is the protein that the complementary strand of the DNA encodes."""
    found = "".join(_text(files).split()).rstrip("*")
    return (
        "" if found == _PROTEIN else f"The protein is {found[:40]!r}, and has to begin with {_PROTEIN[:8]}."
    )


@_check("answer.txt")
def long_context(files: Files) -> str:
    """Check that the answer is Birch Lock, 2,674 mm."""
    answer = _text(files)
    right = "Birch Lock" in answer and re.search(r"\b2,?674\b", answer)
    return "" if right else f"The answer is {answer[:60]!r}, and has to be Birch Lock: 2674 mm."


@_check("poem.txt")
def instructions(files: Files) -> str:
    """Check for five lines of seven words whose first letters spell LIGHT, without z and repeated words."""
    lines = [line for line in _text(files, "poem.txt").split("\n") if line.strip()]
    words = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", "\n".join(lines).casefold())
    if "".join(line.strip()[0] for line in lines).upper() != "LIGHT":
        return "The first letters of the lines do not spell LIGHT."
    if wrong := [line for line in lines if len(line.split()) != 7]:
        return f"The line {wrong[0][:60]!r} does not have seven words."
    if twice := [word for word in words if words.count(word) > 1]:
        return f"The word {twice[0]!r} appears twice."
    return "The letter z is used." if "z" in "".join(words) else ""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.circles = self.scripts = 0
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.circles += tag == "circle"
        self.scripts += tag == "script"
        loads = {"src", "href", "action", "data", "poster", "srcset"}
        values = (value or "" for name, value in attrs if name in loads)
        self.outside += [value for value in values if re.match(r"\s*(?:https?:)?//", value, re.IGNORECASE)]


@_check("map.html")
def city_map(files: Files) -> str:
    """Check for an HTML page with eight circles and a script. The page must not load anything from the network."""
    page = _Page()
    page.feed(_text(files, "map.html"))
    if page.circles != 8:
        return f"The map has {page.circles} circles, and has to have 8."
    if not page.scripts:
        return "The map is not interactive: it has no script."
    return f"The map loads {page.outside[0][:60]!r} from the network." if page.outside else ""


@_check("poster.svg")
def poster(files: Files) -> str:
    """Check for a PNG of 680 x 960 pixels, and an SVG drawing."""
    data = _file(files, "poster.png")
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or b"IEND" not in data[-12:]:
        return "poster.png is not a PNG file."
    size = struct.unpack(">II", data[16:24])
    if size != (680, 960):
        return f"poster.png has {size[0]} x {size[1]} pixels, and has to have 680 x 960."
    source = _text(files, "poster.svg")
    if "<!DOCTYPE" in source or "<!ENTITY" in source:
        return "poster.svg declares entities, which an SVG file does not need."
    root = ElementTree.fromstring(source)
    if root.tag.rpartition("}")[2] != "svg" or len(list(root.iter())) < 3:
        return "poster.svg is not a drawing."
    return ""


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each box in `data`. `data` is an MP4 file, or the content of another box.

    ISO/IEC 14496-12 defines boxes.
    """
    place = 0
    while place + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[place : place + 8])
        head = 8
        if size == 1:
            (size,), head = struct.unpack(">Q", data[place + 8 : place + 16]), 16
        size = len(data) - place if size == 0 else size
        if size < head or place + size > len(data):
            raise _WrongError("countdown.mp4 is cut off.")
        yield kind, data[place + head : place + size]
        place += size


def _inside(data: bytes, *kinds: bytes) -> bytes:
    for kind in kinds:
        # Read all boxes, because the file may be cut off after the wanted box.
        boxes = list(_boxes(data))
        data = next((content for found, content in boxes if found == kind), b"")
    return data


@_check("countdown.mp4")
def countdown(files: Files) -> str:
    """Check for an MP4 file of 10 to 12 seconds with at least eleven pictures."""
    data = _file(files, "countdown.mp4")
    movie = _inside(data, b"moov")
    head = _inside(movie, b"mvhd")
    if data[4:8] != b"ftyp" or len(head) < 20:
        return "countdown.mp4 is not an MP4 file."
    where = ">I8xII" if head[0] == 0 else ">I16xIQ"
    _, scale, duration = struct.unpack_from(where, head)
    seconds = duration / max(1, scale)
    if not 10 <= seconds <= 12:
        return f"The video lasts {seconds:.1f} seconds, and has to last 10 to 12."
    sizes = _inside(movie, b"trak", b"mdia", b"minf", b"stbl", b"stsz")
    pictures = struct.unpack_from(">4xII", sizes)[1] if len(sizes) >= 12 else 0
    return "" if pictures >= 11 else f"The video has {pictures} pictures, and has to have at least 11."


@_check("piece.wav")
def piano(files: Files) -> str:
    """Check for a MIDI file with notes, and a sound file of 16 seconds, mono, 8,000 Hz, 16 bit."""
    midi = _file(files, "piece.mid")
    if (
        midi[:8] != b"MThd\0\0\0\6"
        or b"MTrk" not in midi
        or not re.search(rb"[\x90-\x9f][\0-\x7f][\1-\x7f]", midi)
    ):
        return "piece.mid is not a MIDI file with notes."
    with wave.open(io.BytesIO(_file(files, "piece.wav"))) as sound:
        form = (sound.getnchannels(), sound.getframerate(), 8 * sound.getsampwidth())
        seconds = sound.getnframes() / sound.getframerate()
        loud = any(sound.readframes(sound.getnframes()))
    if form != (1, 8_000, 16):
        return (
            f"piece.wav has {form[0]} channels, {form[1]} Hz, {form[2]} bit, and has to have 1, 8000 and 16."
        )
    if not 15.5 <= seconds <= 18:
        return f"piece.wav lasts {seconds:.1f} seconds, and has to last 16."
    return "" if loud else "piece.wav is silent."
