"""The isolated frame in which a page made by the model is shown, at first without its scripts.

`labextension/src/artifacts/frame.ts` makes the same frame for the trajectory view.
"""

from __future__ import annotations

import base64
import html
import re
import zlib

from llm_sandbox_nb.card.static_page import static_page
from llm_sandbox_nb.card.text import card_file, json_for_script
from llm_sandbox_nb.encoded_text import text_of


def _policy(*, scripts: bool) -> str:
    """Return a content security policy without network access; `labextension/src/artifacts/frame.ts` has it too."""
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
REMAINING_RISK = (
    "Its scripts run in a frame that cannot read this page or load from the network. Once you click into it, it gets "
    "your keys and can play sound, copy to the clipboard and ask for a file. A hostile page can still send a few bytes "
    "in the host name of an address that it tries to open."
)


def _head(policy: str) -> str:
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta http-equiv="x-dns-prefetch-control" content="off"><meta name="referrer" content="no-referrer">'
    )


PRELUDE = (
    '<script>for(const name of ["RTCPeerConnection","webkitRTCPeerConnection","RTCDataChannel","RTCIceTransport",'
    '"WebTransport","EyeDropper"])delete window[name];'
    "for(const one of [window,HTMLElement.prototype,SVGElement.prototype]){const focus=one.focus;"
    "one.focus=function(how){if(document.hasFocus())focus.call(this,how)}}</script>"
)
"""Script that runs before the scripts of the document: a copy of `PRELUDE` in `labextension/src/artifacts/frame.ts`."""
_POWERS = """
accelerometer aria-notify autoplay browsing-topics camera captured-surface-control clipboard-read clipboard-write
compute-pressure deferred-fetch deferred-fetch-minimal digital-credentials-create digital-credentials-get
display-capture encrypted-media fullscreen gamepad geolocation gyroscope hid identity-credentials-get
idle-detection interest-cohort keyboard-map language-detector language-model local-fonts local-network
local-network-access loopback-network magnetometer media-playback-while-not-visible microphone midi
on-device-speech-recognition otp-credentials payment picture-in-picture private-state-token-issuance
private-state-token-redemption publickey-credentials-create publickey-credentials-get screen-wake-lock serial
speaker-selection storage-access summarizer sync-xhr translator unload usb window-management xr-spatial-tracking
"""
DENIED = "; ".join(f"{power} 'none'" for power in _POWERS.split())
"""Permissions policy of both frames, which denies every feature that a browser could grant."""


def sandboxed_frame(document: bytes, *, height: int = 420) -> str:
    """Return `document` in a frame of `height` pixels; its scripts run only after a person's click.

    The document is in a frame inside another frame. The inner frame has an opaque origin, so it cannot reach the page,
    and its policy forbids loading. The policy does not prevent the document from navigating elsewhere (a refresh,
    `location = ...`), but the `frame-src` of the outer frame does. The outer frame is `frame.html`, whose only script
    comes from this package. While scripts of the document run, a button covers the inner frame: only a click on it
    gives the inner frame the keyboard. A document that takes the keyboard without a click is stopped, as in `focus.ts`.
    """
    page, runs = static_page(text_of(document))
    values = {
        "TOP": "1.8em" if runs else "0",
        "STATIC": json_for_script(_head(STATIC_POLICY)),
        "RUNNING": json_for_script(_head(POLICY) + PRELUDE),
        "DENIED": json_for_script(DENIED),
        "RUNS": "true" if runs else "false",
        "REMAINDER": json_for_script(REMAINING_RISK),
        "PACKED": _pack(document),
        "SAFE": _pack(page.encode("utf-8", "replace")),
    }
    outer = _head(POLICY) + re.sub(
        "|".join(values), lambda found: values[found[0]], card_file("frame.html").strip()
    )
    style = f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff"
    return (
        f'<iframe sandbox="allow-scripts" allow="{DENIED}" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(outer, quote=True)}"></iframe>'
    )


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
