"""Program that extracts the text of an HTML page, an EPUB book or a PDF.

This is a separate program, so that a file can neither hang nor crash the caller. `python -m
llm_sandbox_nb.training.data.convert FILE` prints JSON with `title` and `text`. If the file cannot be read, the reason
is on stderr.
"""

from __future__ import annotations

import json
import posixpath
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

from llm_sandbox_nb.errors import LLMSandboxError

MAX_BYTES = 64 * 2**20
"""Maximum size of a document in bytes. The limit holds before and after unpacking."""


class ConversionError(LLMSandboxError, ValueError):
    """Error for a document that cannot be read. The message is a part of a sentence."""


def convert(path: Path) -> tuple[str, str]:
    """Return the title and the text of a document. The title is empty if the document has no title.

    Raises:
        ConversionError: if the document is too large, encrypted or damaged.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ConversionError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    kind = path.suffix.lower()
    if kind in (".html", ".htm", ".xhtml"):
        return _html(path.read_bytes())
    return _epub(path) if kind == ".epub" else _pdf(path)


def _html(content: bytes) -> tuple[str, str]:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    page = BeautifulSoup(content, "html.parser")
    title = page.title.get_text(" ", strip=True) if page.title else ""
    for tag in page(["script", "style", "template", "noscript", "head"]):
        tag.decompose()
    text = MarkdownConverter(heading_style="ATX", strip=["a", "img"], escape_misc=False).convert_soup(page)
    return title, str(text)


def _epub(path: Path) -> tuple[str, str]:
    """Read the chapters in the order of the book's spine (EPUB 3.3, section 5)."""
    from defusedxml import ElementTree

    with zipfile.ZipFile(path) as book:
        if sum(member.file_size for member in book.infolist()) > MAX_BYTES:
            raise ConversionError(f"it is larger than {MAX_BYTES // 2**20} MiB when unpacked")
        container = ElementTree.fromstring(book.read("META-INF/container.xml"))
        package = next(node.attrib["full-path"] for node in container.iter() if _tag(node) == "rootfile")
        root = ElementTree.fromstring(book.read(package))
        title = next((node.text or "" for node in root.iter() if _tag(node) == "title"), "")
        items = {node.attrib["id"]: node.attrib["href"] for node in root.iter() if _tag(node) == "item"}
        names = [items[node.attrib["idref"]] for node in root.iter() if _tag(node) == "itemref"]
        folder = posixpath.dirname(package)
        chapters = [
            _html(book.read(posixpath.normpath(posixpath.join(folder, unquote(name)))))[1] for name in names
        ]
    return title.strip(), "\n\n".join(chapter.strip() for chapter in chapters if chapter.strip())


def _tag(node: object) -> str:
    return str(getattr(node, "tag", "")).rpartition("}")[2]


def _pdf(path: Path) -> tuple[str, str]:
    from pypdf import PdfReader

    reader = PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise ConversionError("it is encrypted")
    title = str(reader.metadata.title or "").strip() if reader.metadata else ""
    pages = []
    size = 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > MAX_BYTES:
            raise ConversionError(f"its text is larger than {MAX_BYTES // 2**20} MiB")
    return title, "\n\n".join(page for page in pages if page)


def main() -> None:
    try:
        title, text = convert(Path(sys.argv[1]))
    except ImportError as error:
        sys.exit(f"{error.name} is missing: run `pip install 'llm-sandbox-nb[documents]'`")
    sys.stdout.buffer.write(json.dumps({"title": title, "text": text}).encode("ascii"))


if __name__ == "__main__":
    main()
