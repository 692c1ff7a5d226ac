"""An HTML or SVG file as it looks without its scripts."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from html.parser import HTMLParser

_TAGS = frozenset(
    """
    a abbr address article aside audio b bdi bdo big blockquote br button caption center cite code col colgroup
    data dd del details dfn dir div dl dt em fieldset figcaption figure font footer h1 h2 h3 h4 h5 h6 header
    hgroup hr i img input ins kbd label legend li main map mark menu meter nav ol optgroup option output p
    picture pre progress q rp rt ruby s samp section select small source span strike strong style sub summary
    sup table tbody td textarea tfoot th thead time tr tt u ul var video wbr
    svg circle clipPath defs desc ellipse feBlend feColorMatrix feComponentTransfer feComposite
    feConvolveMatrix feDiffuseLighting feDisplacementMap feDistantLight feDropShadow feFlood feFuncA feFuncB
    feFuncG feFuncR feGaussianBlur feImage feMerge feMergeNode feMorphology feOffset fePointLight
    feSpecularLighting feSpotLight feTile feTurbulence filter g image line linearGradient marker mask metadata
    path pattern polygon polyline radialGradient rect stop switch symbol text textPath title tspan use view
    """.split()  # noqa: SIM905
)
_GONE = frozenset(["script", "noscript", "template", "iframe", "frame", "object", "embed"])
"""Elements that go with what is in them; of others that are not allowed the content stays."""
_ATTRIBUTES = frozenset(
    """
    abbr align alt bgcolor border cellpadding cellspacing char checked class clear color cols colspan controls
    coords datetime dir disabled face for headers height hidden high href id label lang low max min multiple name
    noshade nowrap open optimum placeholder readonly reversed role rows rowspan rules scope selected shape
    size span src start step style summary tabindex title type valign value width wrap
    accent-height amplitude azimuth baseFrequency baseline-shift bias clip clip-path clip-rule clipPathUnits
    color-interpolation color-interpolation-filters cx cy d diffuseConstant direction display divisor
    dominant-baseline dx dy edgeMode elevation exponent fill fill-opacity fill-rule filter filterUnits
    flood-color flood-opacity font-family font-size font-size-adjust font-stretch font-style font-variant
    font-weight fx fy gradientTransform gradientUnits image-rendering in in2 intercept k k1 k2 k3 k4
    kernelMatrix kernelUnitLength lengthAdjust letter-spacing lighting-color limitingConeAngle marker-end
    marker-mid marker-start markerHeight markerUnits markerWidth mask maskContentUnits maskUnits mode
    numOctaves offset opacity operator order orient overflow paint-order pathLength patternContentUnits
    patternTransform patternUnits points pointsAtX pointsAtY pointsAtZ preserveAlpha preserveAspectRatio
    primitiveUnits r radius refX refY result rotate rx ry scale seed shape-rendering slope specularConstant
    specularExponent spreadMethod startOffset stdDeviation stitchTiles stop-color stop-opacity stroke
    stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity
    stroke-width surfaceScale systemLanguage tableValues targetX targetY text-anchor text-decoration
    text-rendering textLength transform transform-origin u1 u2 unicode-bidi values vector-effect version
    viewBox visibility word-spacing writing-mode x x1 x2 xChannelSelector xlink:href xmlns xmlns:xlink
    y y1 y2 yChannelSelector z zoomAndPan
    """.split()  # noqa: SIM905
)
_ADDRESSES = frozenset(["href", "xlink:href", "src"])
_WITHIN = re.compile(r"\s*(?:#|data:(?:image|audio|video|font)/)", re.IGNORECASE)
"""What a page without scripts may name: places in itself, and pictures and sound that it holds."""
_ROOTS = ("html", "body")
_ROOT_ATTRIBUTES = ("class", "id", "style", "lang", "dir", "bgcolor", "text")


@dataclass(frozen=True)
class StaticPage:
    """A page without scripts, to be put after a `<!doctype html>` and a policy."""

    html: str
    runs: bool
    """Whether the file has scripts, so that it may look different when it runs."""


def static_page(text: str) -> StaticPage:
    """An HTML or SVG file as it looks without its scripts: nothing in it runs, loads or leads anywhere.

    A policy and a sandbox are not enough. Chromium looks up the host of a frame, a form or a link, and connects to it,
    before the policy refuses to go there, so that data leaves in the name: whatever names an address is removed.
    The view does the same in `labextension/src/artifacts/static-page.ts`.
    """
    import nh3

    cleaned = nh3.clean(
        text,
        tags=set(_TAGS),
        clean_content_tags=set(_GONE),
        attributes={"*": set(_ATTRIBUTES)},
        attribute_filter=_kept_attribute,
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"data"},
        link_rel=None,
    )
    found = _Scan()
    found.feed(f"{text}>")  # else each tag that nobody ends is looked for to the end of the text
    for name in reversed(_ROOTS):
        attributes = (f" {key}='{html.escape(value)}'" for key, value in found.roots.get(name, []))
        cleaned = f"<{name}{''.join(attributes)}>{cleaned}"
    return StaticPage(cleaned, found.runs)


def _kept_attribute(tag: str, name: str, value: str) -> str | None:
    return None if name in _ADDRESSES and not _WITHIN.match(value) else value


class _Scan(HTMLParser):
    """Attributes of `html` and `body`, which a cleaned fragment lacks, and whether there are scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.roots: dict[str, list[tuple[str, str]]] = {}
        self.runs = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ROOTS and tag not in self.roots:
            self.roots[tag] = [(name, value or "") for name, value in attrs if name in _ROOT_ATTRIBUTES]
        self.runs = (
            self.runs
            or tag in ("script", "iframe", "frame", "object", "embed")
            or any(
                name.startswith("on") or (value or "").lstrip().lower().startswith("javascript:")
                for name, value in attrs
            )
        )
