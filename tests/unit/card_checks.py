"""Reads a card's HTML as a browser would, and says what in it is not static."""

from __future__ import annotations

from html.parser import HTMLParser

from llm_sandbox_nb.card.frame import DENIED

TAGS = {
    "a", "audio", "b", "blockquote", "br", "code", "del", "details", "div", "em", "figcaption", "figure",
    "h1", "h2", "h3", "h4", "h5", "h6", "hr", "iframe", "img", "li", "object", "ol", "p", "pre", "span",
    "strong", "style",
    "summary", "table", "tbody", "td", "th", "thead", "tr", "ul", "video",
}  # fmt: skip
ATTRIBUTES = {
    "allow", "alt", "class", "controls", "data", "download", "height", "href", "id", "loading", "open", "preload",
    "referrerpolicy",
    "rel", "sandbox", "src", "srcdoc", "start", "style", "target", "title", "type",
}  # fmt: skip
LINKS = ("https://", "http://", "mailto:", "data:")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.frames: list[dict[str, str | None]] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in TAGS:
            self.found.append(f"tag {tag}")
        for name, value in attributes:
            if name not in ATTRIBUTES or (tag, name) == ("a", "style"):
                self.found.append(f"{tag} has {name}")
            if name in ("src", "data") and not (value or "").startswith("data:"):
                self.found.append(f"{tag} loads {value}")
            if (
                name == "href"
                and ":" in (value or "").partition("/")[0]
                and not (value or "").lower().startswith(LINKS)
            ):
                self.found.append(f"{tag} leads to {value}")
            if name == "style" and "url(" in (value or ""):
                self.found.append(f"{tag} styles with {value}")
        if tag == "iframe":
            self.frames.append(dict(attributes))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader


def not_static(html: str) -> list[str]:
    """Everything in `html` that could run, load or lead anywhere it should not."""
    reader = read(html)
    for frame in reader.frames:
        if frame.get("sandbox") != "allow-scripts" or "src" in frame:
            reader.found.append(f"frame {frame.get('sandbox')}")
        if frame.get("allow") != DENIED:
            reader.found.append(f"frame allows {frame.get('allow')}")
    return reader.found
