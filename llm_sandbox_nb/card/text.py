"""Text as safe HTML: escaped, as JSON, or rendered from Markdown; and the texts of files in this folder."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from llm_sandbox_nb.plain_text import plain

if TYPE_CHECKING:
    from mistune import Markdown


def escape(text: str) -> str:
    """Make `text` plain, and escape the result for use between tags and in quoted attributes."""
    return html.escape(plain(text), quote=True)


def json_for_script(value: object) -> str:
    """Return JSON that cannot end the surrounding `<script>` element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


@cache
def card_file(name: str) -> str:
    """Return the text of a file in this folder."""
    return (files("llm_sandbox_nb") / "card" / name).read_text("utf-8")


_SAFE_LINKS = ("https://", "http://", "mailto:")


def markdown_html(text: str) -> str:
    """Render Markdown as HTML: raw HTML is escaped, pictures are not loaded, links open in a new tab."""
    return str(_renderer()(plain(text)))


@cache
def _renderer() -> Markdown:
    import mistune

    class _Renderer(mistune.HTMLRenderer):
        """Renderer of links and pictures, the two elements of Markdown with an address."""

        def link(self, text: str, url: str, title: str | None = None) -> str:
            if not url.lower().startswith(_SAFE_LINKS):
                return f"{text} (<code>{escape(url)}</code>)"
            return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'

        def image(self, text: str, url: str, title: str | None = None) -> str:
            return f"<em>{escape(text)}</em> (<code>{escape(url)}</code>)"

    return mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["table", "strikethrough"])
