"""An HTML or SVG file without its scripts."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

from llm_sandbox_nb.card.text import card_file

_PROGRAMS = ("script", "iframe", "frame", "object", "embed")
_REMOVED = (*_PROGRAMS, "noscript", "template")
"""Elements that are removed with their content. Of other forbidden elements, the content stays in the page."""
_ADDRESSES = frozenset(["href", "xlink:href", "src"])
_EMBEDDED_PATTERN = re.compile(r"\s*(?:#|data:(?:image|audio|video|font)/)", re.IGNORECASE)
"""Matches the allowed addresses: places in the page itself, and embedded pictures, sound, video and fonts."""
_SCRIPT = re.compile(r"\s*javascript:", re.IGNORECASE)
_ROOTS = ("html", "body")
_ROOT_ATTRIBUTES = ("class", "id", "style", "lang", "dir", "bgcolor", "text")


def static_page(text: str) -> tuple[str, bool]:
    """Remove the scripts of an HTML or SVG file. Return the cleaned page, and True if scripts were found.

    The caller must show the page under a content security policy that forbids loading, because styles can contain
    addresses. Then nothing in the page runs, loads or navigates. Attributes with an address outside of the page are
    removed, because a policy and a sandbox are not enough: Chromium looks up the host of a frame, form or link, and
    connects to it, before the policy refuses the address. A page could put secret data into such a host name.
    `labextension/src/artifacts/static-page.ts` cleans pages for the view in the same way.
    """
    import nh3

    _, elements, attributes = card_file("allowed-in-pages.txt").split("\n\n")
    cleaned = nh3.clean(
        text,
        tags=set(elements.split()[1:]),
        clean_content_tags=set(_REMOVED),
        attributes={"*": set(attributes.split()[1:])},
        attribute_filter=_kept_attribute,
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"data"},
        link_rel=None,
    )
    found = _Scan()
    found.feed(f"{text}>")  # without `>`, the parser searches the whole text for the end of each unclosed tag
    for name in reversed(_ROOTS):
        given = (f" {key}='{html.escape(value)}'" for key, value in found.roots.get(name, []))
        cleaned = f"<{name}{''.join(given)}>{cleaned}"
    return cleaned, found.runs


def _kept_attribute(tag: str, name: str, value: str) -> str | None:
    return None if name in _ADDRESSES and not _EMBEDDED_PATTERN.match(value) else value


class _Scan(HTMLParser):
    """Parser that finds scripts, and the attributes of `html` and `body`, which a cleaned page lacks."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.roots: dict[str, list[tuple[str, str]]] = {}
        self.runs = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ROOTS and tag not in self.roots:
            self.roots[tag] = [(name, value or "") for name, value in attrs if name in _ROOT_ATTRIBUTES]
        acts = (name.startswith("on") or _SCRIPT.match(value or "") for name, value in attrs)
        self.runs = self.runs or tag in _PROGRAMS or any(acts)
