"""A frame for HTML that is not trusted: its scripts run, but see neither the page nor the network."""

from __future__ import annotations

import html

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "style-src 'unsafe-inline' data:; img-src data: blob:; media-src data: blob:; font-src data:; "
    "worker-src blob:; frame-src 'none'; form-action 'none'; base-uri 'none'"
)
_META = f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'


def sandboxed_frame(document: str, *, height: int = 420) -> str:
    """`document` in a frame of `height` pixels.

    Two frames, one in the other. The origin of the inner one is opaque, so it cannot reach the page, and
    its policy lets it load nothing. The outer one is there because a policy does not keep a document from
    going elsewhere (`location = ...`, a refresh): that is forbidden by `frame-src` of the document around it.
    """
    inner = _frame(_META + document, "border:0;width:100%;height:100%;position:absolute;inset:0")
    outer = _META + '<body style="margin:0;background:#fff">' + inner
    return _frame(outer, f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff")


def _frame(document: str, style: str) -> str:
    return (
        f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(document, quote=True)}"></iframe>'
    )
