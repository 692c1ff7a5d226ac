"""Files the model made, as static HTML.

All content is hostile: names and texts are escaped, HTML and SVG are shown only in a frame that can reach neither
the page nor the network.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from llm_sandbox_nb.card.tables import delimited_table, parquet_table
from llm_sandbox_nb.card.text import escape, markdown_html
from llm_sandbox_nb.encoded_text import text_of
from llm_sandbox_nb.formatting import clip, format_size
from llm_sandbox_nb.trajectory.events import ArtifactSaved
from llm_sandbox_nb.trajectory.run_folder import FILES, own_file
from llm_sandbox_nb.windows import open_no_link

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
    found.feed(text)
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


TEXT_LIMIT = 4_000
"""Characters shown of a text file."""

_IMAGES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
    ".webp": "image/webp",
}  # fmt: skip
_AUDIO = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".oga": "audio/ogg"}
_VIDEO = {".mp4": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg"}
_DOWNLOADS = {".mid": "audio/midi", ".midi": "audio/midi"}
_TEXTS = {
    ".txt", ".log", ".py", ".sh", ".r", ".js", ".css", ".yaml", ".yml", ".toml", ".ini", ".tex", ".xml",
    ".sql", ".c", ".rst", ".bib",
}  # fmt: skip
_ACTIVE = {
    ".html",
    ".htm",
    ".xhtml",
    ".shtml",
    ".mht",
    ".mhtml",
    ".svg",
    ".svgz",
    ".xml",
    ".xsl",
    ".pdf",
    ".js",
}
"""Kinds whose scripts run when a browser opens the file: the card does not link to them."""


def _policy(*, scripts: bool) -> str:
    """As `policy` in `labextension/src/artifacts/frame.ts`, without a network."""
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'unsafe-inline' 'unsafe-eval' data: blob:" if scripts else "script-src 'none'",
            "style-src 'unsafe-inline' data:",
            "img-src data: blob:",
            "media-src data: blob:",
            "font-src data:",
            "worker-src blob:" if scripts else "worker-src 'none'",
            "frame-src 'none'",
            "form-action 'none'",
            "base-uri 'none'",
        ]
    )


POLICY = _policy(scripts=True)
STATIC_POLICY = _policy(scripts=False)
REMAINDER = (
    "Its scripts run in a frame that cannot read this page or load from the network. A hostile page can still "
    "send a few bytes in the host name of an address that it tries to open."
)


def _head(policy: str) -> str:
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">'
    )


_PRELUDE = (
    '<script>for(const name of ["RTCPeerConnection","webkitRTCPeerConnection","RTCDataChannel","RTCIceTransport",'
    '"WebTransport"])delete window[name]</script>'
)
"""As in `labextension/src/artifacts/frame.ts`."""

_FRAME = """
<body style="margin:0;background:#fff;font:13px sans-serif"><div id="bar"></div>
<div id="place" style="position:absolute;inset:TOP 0 0"></div><script>(()=>{
const packed="PACKED",safe="SAFE";
const place=document.getElementById("place"),bar=document.getElementById("bar");
const text=async code=>{const bytes=Uint8Array.from(atob(code),c=>c.charCodeAt(0));
const stream=new DecompressionStream("deflate"),writer=stream.writable.getWriter();
writer.write(bytes);writer.close();return new Response(stream.readable).text()};
let watch=0;
const show=(html,scripts)=>{clearInterval(watch);const frame=document.createElement("iframe");
frame.sandbox=scripts?"allow-scripts":"";frame.referrerPolicy="no-referrer";
frame.style.cssText="border:0;width:100%;height:100%;position:absolute;inset:0";
frame.srcdoc=html;place.replaceChildren(frame);
let taken=[];
if(scripts)watch=setInterval(()=>{if(document.activeElement!==frame)return;frame.blur();parent.focus();
const now=performance.now();taken=[...taken.filter(time=>now-time<2000),now];
if(taken.length>8)still(" This page kept taking the keyboard. It was stopped.")},20)};
const button=document.createElement("button"),note=document.createElement("span");
const still=said=>{button.hidden=false;note.textContent=said;text(safe).then(html=>show(STATIC+html,false))};
still(" Shown without its scripts.");
if(RUNS){button.textContent="Run this page";button.title=REMAINDER;bar.append(button,note);
button.onclick=event=>{if(!event.isTrusted)return;button.hidden=true;
note.textContent=" It has no network and no keyboard.";text(packed).then(html=>show(RUNNING+html,true))}}
})()</script>
"""
"""The outer frame: ours alone runs in it. `packed` is the file, `safe` the same without scripts."""


def sandboxed_frame(document: bytes, *, height: int = 420) -> str:
    """`document`, probably UTF-8, in a frame of `height` pixels, without its scripts until a person runs it.

    Two frames, one in the other. The origin of the inner one is opaque, so it cannot reach the page, and
    its policy lets it load nothing. The outer one is there because a policy does not keep a document from
    going elsewhere (`location = ...`, a refresh): that is forbidden by `frame-src` of the document around it.
    While its scripts run, the outer frame takes the focus from the inner one: a script can take it without a click
    (`window.focus()`), and no frame learns whether the pointer is in it.
    """
    page = static_page(text_of(document))
    values = {
        "TOP": "1.8em" if page.runs else "0",
        "STATIC": _literal(_head(STATIC_POLICY)),
        "RUNNING": _literal(_head(POLICY) + _PRELUDE),
        "RUNS": "true" if page.runs else "false",
        "REMAINDER": _literal(REMAINDER),
        "PACKED": _pack(document),
        "SAFE": _pack(page.html.encode("utf-8", "replace")),
    }
    outer = _head(POLICY) + re.sub("|".join(values), lambda found: values[found[0]], _FRAME.strip())
    style = f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff"
    return (
        f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(outer, quote=True)}"></iframe>'
    )


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _literal(text: str) -> str:
    """A JavaScript string that ends no script element."""
    return json.dumps(text).replace("<", "\\u003c")


@dataclass(frozen=True)
class Artifact:
    """One file of the output folder, with its content where that is known."""

    path: str
    """Relative to the output folder, with `/`."""
    mime: str
    size: int
    data: bytes | None = None
    """The content; None when it is not shown."""
    omitted: str = ""
    """Why `data` is None."""
    href: str | None = None
    """Where the file lies, relative to the notebook."""

    @property
    def suffix(self) -> str:
        """The name's ending in lower case, which decides how the file is shown."""
        return PurePosixPath(self.path).suffix.lower()


def artifact_html(artifact: Artifact, unfolded: bool = False) -> str:
    """The file with its name, shown by its kind, or the reason why it is not shown. `unfolded`: at once in full."""
    body = f"<p class='lsn-quiet'>{escape(artifact.omitted)}</p>"
    if artifact.data is not None:
        body = _unfolding(artifact, _body(artifact, artifact.data), unfolded)
    css = "lsn-artifact lsn-whole" if unfolded else "lsn-artifact"
    return f"<figure class='{css}'><figcaption>{_caption(artifact)}</figcaption>{body}</figure>"


def _unfolding(artifact: Artifact, body: str, unfolded: bool) -> str:
    """A picture or a page is small until it is unfolded; texts and tables are hidden until then."""
    if artifact.suffix in _IMAGES:
        return body if unfolded else f"<details><summary>{body}</summary></details>"
    if body.startswith("<iframe "):
        named = body.replace(" loading=", f" title='{escape(artifact.path)}' loading=", 1)
        return named if unfolded else f"<details><summary>{named}</summary></details>"
    if body.startswith(("<audio ", "<video ", "<p")) and not body.startswith("<pre"):
        return body
    return body if unfolded else f"<details><summary>Show</summary>{body}</details>"


def _caption(artifact: Artifact) -> str:
    name = f"<code>{escape(artifact.path)}</code>"
    if artifact.href and artifact.suffix not in _ACTIVE:
        name = (
            f"<a href='{escape(quote(artifact.href))}' target='_blank' rel='noopener noreferrer'>{name}</a>"
        )
    return f"{name} <span class='lsn-quiet'>{format_size(artifact.size)}</span>"


def _body(artifact: Artifact, data: bytes) -> str:
    suffix, name = artifact.suffix, escape(artifact.path)
    if suffix in _IMAGES:
        return f"<img alt='{name}' src='{_uri(_IMAGES[suffix], data)}' style='max-width:100%'>"
    if suffix in _AUDIO:
        return f"<audio controls preload='metadata' src='{_uri(_AUDIO[suffix], data)}'></audio>"
    if suffix in _VIDEO:
        return f"<video controls style='max-width:100%' src='{_uri(_VIDEO[suffix], data)}'></video>"
    if suffix in _DOWNLOADS:
        return _download(artifact, _DOWNLOADS[suffix], data)
    if suffix == ".pdf":
        return _pdf(artifact, data)
    if suffix in _RENDERERS:
        return _RENDERERS[suffix](data)
    if suffix in _TEXTS or artifact.mime.startswith("text/"):
        return f"<pre>{escape(clip(text_of(data), TEXT_LIMIT))}</pre>"
    return _download(artifact, "application/octet-stream", data)


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def _download(artifact: Artifact, mime: str, data: bytes) -> str:
    name = escape(PurePosixPath(artifact.path).name)
    return f"<p><a download='{name}' href='{_uri(mime, data)}'>Download {name}</a></p>"


def _pdf(artifact: Artifact, data: bytes) -> str:
    uri = _uri("application/pdf", data)
    inside = (
        f"<p>This page cannot show PDF files; the file is {escape(artifact.path)} in the run's folder.</p>"
    )
    return f"<object type='application/pdf' data='{uri}' style='width:100%;height:480px'>{inside}</object>"


def _json(data: bytes) -> str:
    """Indented; anything else, or what is nested too deep, as it is."""
    text = text_of(data)
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return f"<pre>{escape(clip(text, TEXT_LIMIT))}</pre>"


def _markdown(data: bytes) -> str:
    return f"<div class='lsn-markdown'>{markdown_html(clip(text_of(data), TEXT_LIMIT * 5))}</div>"


_RENDERERS: dict[str, Callable[[bytes], str]] = {
    ".html": sandboxed_frame,
    ".htm": sandboxed_frame,
    ".svg": lambda data: sandboxed_frame(data, height=360),
    ".csv": lambda data: delimited_table(text_of(data), ","),
    ".tsv": lambda data: delimited_table(text_of(data), "\t"),
    ".parquet": parquet_table,
    ".md": _markdown,
    ".markdown": _markdown,
    ".json": _json,
    ".geojson": _json,
    ".ipynb": _json,
}


def load_artifacts(
    saved: Iterable[ArtifactSaved], folder: Path | None, *, each: int, together: int
) -> list[Artifact]:
    """The files with their content, when one has at most `each` bytes and all have at most `together`."""
    artifacts = []
    for one in saved:
        artifact = _load(one, folder, min(each, together), each)
        together -= len(artifact.data or b"")
        artifacts.append(artifact)
    return artifacts


def _load(saved: ArtifactSaved, folder: Path | None, room: int, each: int) -> Artifact:
    path = None if folder is None else own_file(folder / FILES, saved.path)
    href = relative_path(path)
    size = max(saved.size, path.lstat().st_size if path else 0)  # a received record may name another
    if size > room:
        bound = f"the bound of {format_size(each)} a file" if size > each else "the bound of a run"
        why = f"Not shown: larger than {bound}; it is in the run's folder."
        return Artifact(saved.path, saved.mime, saved.size, None, why, href)
    try:
        data = _read(path, room) if path else None
    except OSError as error:
        return Artifact(saved.path, saved.mime, saved.size, None, f"Cannot be read: {error.strerror}.", None)
    if data is None and folder is not None:
        why = "Cannot be read: it is not in the run's folder."
        return Artifact(saved.path, saved.mime, saved.size, None, why, None)
    if data is None:
        return Artifact(saved.path, saved.mime, saved.size, None, "Shown when the run is over.", href)
    return Artifact(saved.path, saved.mime, saved.size, data, "", href)


def _read(path: Path, room: int) -> bytes:
    with os.fdopen(open_no_link(path), "rb") as file:
        return file.read(room)


def relative_path(path: Path | None) -> str | None:
    """The path from the working directory, which is the notebook's folder; None when it is elsewhere."""
    if path is None:
        return None
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return None
