"""Markdown from the model as HTML: no raw HTML passes, no picture is loaded, links open apart."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from llm_sandbox_nb.notebook.card_text import escape, plain

if TYPE_CHECKING:
    from mistune import Markdown

_SAFE_LINKS = ("https://", "http://", "mailto:")


def markdown_html(text: str) -> str:
    """`text` rendered."""
    return str(_renderer()(plain(text)))


@cache
def _renderer() -> Markdown:
    import mistune

    class _Renderer(mistune.HTMLRenderer):
        """Takes the two places where Markdown may name an address into its own hands."""

        def link(self, text: str, url: str, title: str | None = None) -> str:
            if not url.lower().startswith(_SAFE_LINKS):
                return f"{text} (<code>{escape(url)}</code>)"
            return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'

        def image(self, text: str, url: str, title: str | None = None) -> str:
            return f"<em>{escape(text)}</em> (<code>{escape(url)}</code>)"

    return mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["table", "strikethrough"])
