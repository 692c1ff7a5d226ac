"""Text as safe HTML: escaped, or read as Markdown."""

from __future__ import annotations

import html
from functools import cache
from typing import TYPE_CHECKING

from llm_sandbox_nb.plain_text import plain

if TYPE_CHECKING:
    from mistune import Markdown


def escape(text: str) -> str:
    """`text`, made plain and then safe between tags and in quoted attributes."""
    return html.escape(plain(text), quote=True)


_SAFE_LINKS = ("https://", "http://", "mailto:")


def markdown_html(text: str) -> str:
    """Markdown as HTML: no raw HTML passes, no picture is loaded, links open in a new tab."""
    return str(_renderer()(plain(text)))


@cache
def _renderer() -> Markdown:
    import mistune

    class _Renderer(mistune.HTMLRenderer):
        """Overrides the two elements of Markdown that hold an address."""

        def link(self, text: str, url: str, title: str | None = None) -> str:
            if not url.lower().startswith(_SAFE_LINKS):
                return f"{text} (<code>{escape(url)}</code>)"
            return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'

        def image(self, text: str, url: str, title: str | None = None) -> str:
            return f"<em>{escape(text)}</em> (<code>{escape(url)}</code>)"

    return mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["table", "strikethrough"])
