"""The closed frame in which a page of the model is shown, first without its scripts.

`labextension/src/artifacts/frame.ts` is the same for the trajectory view.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib

from llm_sandbox_nb.card.static_page import static_page
from llm_sandbox_nb.encoded_text import text_of


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
"""As in `labextension/src/artifacts/frame.ts`."""
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
"""The permissions policy of both frames: what a browser could let a page do, and no artifact may."""

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
frame.sandbox=scripts?"allow-scripts":"";frame.allow=DENIED;frame.referrerPolicy="no-referrer";
frame.style.cssText="border:0;width:100%;height:100%;position:absolute;inset:0";
frame.srcdoc=html;place.replaceChildren(frame);
if(!scripts)return;
const cover=document.createElement("button");let entered=false;
cover.title=cover.ariaLabel="Click to use this page; keys go to it until you click elsewhere";
cover.style.cssText="position:absolute;inset:0;width:100%;height:100%;border:0;background:none;cursor:pointer";
cover.onclick=event=>{if(event.isTrusted){entered=true;cover.hidden=true;frame.focus()}};place.append(cover);
watch=setInterval(()=>{const focused=document.hasFocus()&&document.activeElement===frame;
if(focused&&!entered){frame.blur();parent.focus();
still(" This page took the keyboard without a click. It was stopped.")}
else if(entered&&!focused){entered=false;cover.hidden=false;frame.blur()}},20)};
const button=document.createElement("button"),note=document.createElement("span");
const still=said=>{button.hidden=false;note.textContent=said;text(safe).then(html=>show(STATIC+html,false))};
still(" Shown without its scripts.");
if(RUNS){button.textContent="Run this page";button.title=REMAINDER;bar.append(button,note);
button.onclick=event=>{if(!event.isTrusted)return;button.hidden=true;
note.textContent=" It has no network.";text(packed).then(html=>show(RUNNING+html,true))}}
})()</script>
"""
"""The outer frame: ours alone runs in it. `packed` is the file, `safe` the same without scripts."""


def sandboxed_frame(document: bytes, *, height: int = 420) -> str:
    """`document`, probably UTF-8, in a frame of `height` pixels, without its scripts until a person runs it.

    Two frames, one in the other. The origin of the inner one is opaque, so it cannot reach the page, and
    its policy lets it load nothing. The outer one is there because a policy does not keep a document from
    going elsewhere (`location = ...`, a refresh): that is forbidden by `frame-src` of the document around it.
    While its scripts run, a button of the outer frame covers the inner one, as `focus.ts` of the view says: only a
    click gives the inner one the keyboard, and a page that takes it without one is stopped.
    """
    page = static_page(text_of(document))
    values = {
        "TOP": "1.8em" if page.runs else "0",
        "STATIC": _literal(_head(STATIC_POLICY)),
        "RUNNING": _literal(_head(POLICY) + PRELUDE),
        "DENIED": _literal(DENIED),
        "RUNS": "true" if page.runs else "false",
        "REMAINDER": _literal(REMAINDER),
        "PACKED": _pack(document),
        "SAFE": _pack(page.html.encode("utf-8", "replace")),
    }
    outer = _head(POLICY) + re.sub("|".join(values), lambda found: values[found[0]], _FRAME.strip())
    style = f"border:1px solid #bbb;width:100%;height:{height}px;background:#fff"
    return (
        f'<iframe sandbox="allow-scripts" allow="{DENIED}" referrerpolicy="no-referrer" loading="lazy" style="{style}" '
        f'srcdoc="{html.escape(outer, quote=True)}"></iframe>'
    )


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _literal(text: str) -> str:
    """A JavaScript string that ends no script element."""
    return json.dumps(text).replace("<", "\\u003c")
