"""A frame for HTML that is not trusted: its scripts run, but see neither the page nor the network."""

from __future__ import annotations

import base64
import html
import zlib

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "style-src 'unsafe-inline' data:; img-src data: blob:; media-src data: blob:; font-src data:; "
    "worker-src blob:; frame-src 'none'; form-action 'none'; base-uri 'none'"
)
_META = f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'


_UNPACK = (
    '<script>const packed="PACKED";const bytes=Uint8Array.from(atob(packed),c=>c.charCodeAt(0));'
    'const stream=new DecompressionStream("deflate"),writer=stream.writable.getWriter();'
    "writer.write(bytes);writer.close();new Response(stream.readable).text().then(text=>{"
    'const frame=document.createElement("iframe");frame.sandbox="allow-scripts";'
    'frame.referrerPolicy="no-referrer";frame.style.cssText="STYLE";'
    'frame.srcdoc="<!doctype html>"+[...document.querySelectorAll("meta")].map(m=>m.outerHTML).join("")+text;'
    "document.body.append(frame)})</script>"
)
"""Makes the inner frame, with the same policy: compressed, a page takes a third of what it does escaped twice."""


def sandboxed_frame(document: bytes, *, height: int = 420) -> str:
    """`document`, probably UTF-8, in a frame of `height` pixels.

    Two frames, one in the other. The origin of the inner one is opaque, so it cannot reach the page, and
    its policy lets it load nothing. The outer one is there because a policy does not keep a document from
    going elsewhere (`location = ...`, a refresh): that is forbidden by `frame-src` of the document around it.
    """
    packed = base64.b64encode(zlib.compress(document, 9)).decode("ascii")
    script = _UNPACK.replace("STYLE", "border:0;width:100%;height:100%;position:absolute;inset:0")
    outer = _META + '<body style="margin:0;background:#fff">' + script.replace("PACKED", packed)
    style = f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff"
    return (
        f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(outer, quote=True)}"></iframe>'
    )
