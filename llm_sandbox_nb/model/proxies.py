"""Proxy and certificates that the environment sets for an address.

httpx could read these settings itself, but its errors for invalid values would not name the variable. Also, httpx
would send requests for servers on this machine to the proxy.
"""

from __future__ import annotations

import functools
import importlib.util
import ipaddress
import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from llm_sandbox_nb.known_keys import KeyFilter
from llm_sandbox_nb.model.contract import ModelError

logging.getLogger("httpx").addFilter(
    KeyFilter()
)  # its messages contain the whole address, and a key may be in the query
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_ACCEPTED_ENCODINGS = "gzip, deflate"
"""Compressions that a server may use for its answers.

In one step, 64 KB of an answer unpack to at most 66 MB with these compressions. With zstd, 64 KB can unpack to 2 GB.
"""


def is_loopback(host: str) -> bool:
    """Return True if a host name or address means this machine."""
    host = host.strip("[]").rstrip(".").casefold()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(address: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the proxy for an address, or None if requests to the address use no proxy.

    Raises:
        ModelError: if the variable that names the proxy has an invalid value.
    """
    environment = os.environ if environment is None else environment
    url = httpx.URL(address)
    if is_loopback(url.host) or _left_out(url, environment):
        return None
    names = [f"{url.scheme}_proxy", "all_proxy"]
    for name in (spelling for lower in names for spelling in (lower, lower.upper())):
        if value := environment.get(name, "").strip():
            return _checked(name, value)
    return None


def _checked(name: str, value: str) -> str:
    address = value if "://" in value else f"http://{value}"
    scheme = address.partition("://")[0].casefold()
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL()
    if scheme.startswith("socks"):
        if scheme not in ("socks5", "socks5h"):
            raise _wrong(name, f"names a proxy of the kind {scheme}, which cannot be used")
        if importlib.util.find_spec("socksio") is None:
            raise _wrong(
                name, "names a SOCKS proxy, for which the package socksio is missing (pip install socksio)"
            )
        if not url.host or url.port is None:  # there is no default port
            raise _wrong(name, "is not the address of a SOCKS proxy with its port")
        return address
    if scheme not in ("http", "https") or not url.host:
        raise _wrong(name, "is not the address of a proxy")
    return address


def _wrong(name: str, problem: str) -> ModelError:
    return ModelError(
        f"The environment variable {name} {problem}: correct it, or add the model's host to NO_PROXY.",
        kind="setup",
    )


def _left_out(url: httpx.URL, environment: Mapping[str, str]) -> bool:
    """Return True if NO_PROXY contains `*`, the host's name or its end, or the host's IP address or IP network."""
    host = url.host.strip("[]").casefold()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        number = None
    listed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    for entry in map(str.strip, listed.casefold().split(",")):
        entry = entry.partition("://")[2] or entry
        if entry == "*":
            return True
        name, _, port = entry.rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
        if port and port != str(url.port or {"http": 80, "https": 443}.get(url.scheme)):
            continue
        name = name.strip("[]").lstrip("*").lstrip(".")
        if not name:
            continue
        if number is not None:
            try:
                if number in ipaddress.ip_network(name, strict=False):
                    return True
            except (ValueError, TypeError):
                continue
        elif host == name or host.endswith(f".{name}"):
            return True
    return False


def check_certificates(address: str | None, environment: Mapping[str, str] | None = None) -> None:
    """Raise ModelError if an environment variable names a missing file or folder of certificates.

    If the server is on this machine, do nothing, because requests to this server do not use these variables.
    """
    environment = os.environ if environment is None else environment
    if address and is_loopback(httpx.URL(address).host):
        return
    for name in _CERTIFICATES:
        if (value := environment.get(name)) and not Path(value).exists():
            raise ModelError(
                f"The environment variable {name} names {value}, which does not exist: correct it or unset it.",
                kind="setup",
            )


@functools.cache
def certificates(*, of_environment: bool) -> ssl.SSLContext:
    """Return the certificates with which servers are checked. The result is cached, because loading takes long.

    `of_environment` is True to use certificates that the environment names.
    """
    return httpx.create_ssl_context(trust_env=of_environment)


def http_client(address: str, **options: Any) -> httpx.AsyncClient:
    """Make a client for one address, with the proxy and the certificates of the environment.

    `options` are arguments of `httpx.AsyncClient`. A request raises ModelError if the answer has a compression that was
    not requested. If redirects are followed, a redirect to another server raises ModelError too.

    Raises:
        ModelError: if an environment variable is invalid. The message names the variable.
    """
    check_certificates(address)
    outside = not is_loopback(httpx.URL(address).host)
    checks = [_check_encoding] + [check_redirect] * bool(options.get("follow_redirects"))
    headers = httpx.Headers({"accept-encoding": _ACCEPTED_ENCODINGS})
    headers.update(options.pop("headers", None))
    arguments = {"verify": certificates(of_environment=outside), "proxy": proxy_for(address), **options}
    return httpx.AsyncClient(trust_env=False, headers=headers, event_hooks={"response": checks}, **arguments)


async def _check_encoding(response: httpx.Response) -> None:
    """Raise ModelError for a compression that was not requested, or for several nested compressions."""
    named = response.headers.get("content-encoding", "").lower().split(",")
    encodings = [encoding.strip() for encoding in named if encoding.strip() not in ("", "identity")]
    if len(encodings) > 1 or not set(encodings) <= set(_ACCEPTED_ENCODINGS.split(", ")):
        raise ModelError(
            f"The server at {response.url.host} compresses its answers although this was not requested: turn the "
            "compression off in the server.",
            kind="server",
        )


async def check_redirect(response: httpx.Response) -> None:
    """Raise ModelError for a redirect to another server, which would get the conversation, and perhaps a key.

    Another port counts as another server, because another program may answer there. If the redirect stays on the same
    server, a POST request stays a POST request.
    """
    if not response.has_redirect_location:
        return
    before = response.url
    try:
        after = before.join(response.headers["location"])
    except httpx.InvalidURL:
        return  # the client raises the error
    if after.host != before.host or not (
        (after.scheme, after.port) == (before.scheme, before.port)
        or (before.scheme, after.scheme, before.port, after.port) == ("http", "https", None, None)
    ):
        place = f"{after.scheme}://{after.netloc.decode('ascii', 'replace').rpartition('@')[2]}"
        raise ModelError(
            f"The server at {before.host} redirects to another server, {place:.200}, to which nothing was sent: if "
            "you trust that server, give its address.",
            kind="unreachable",
        )
    if response.request.method == "POST" and response.status_code in (301, 302):
        response.status_code = 307  # httpx would send a GET, without the conversation
