"""The Jupyter server of this kernel: found by environment variables and info files, and verified by a request.

An error that the server reports is raised here as the same exception class.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_sandbox_nb.sandbox import errors
from llm_sandbox_nb.sandbox.errors import SandboxError, SandboxLostError

URL_VARIABLE = "LLM_SANDBOX_SERVER_URL"
TOKEN_VARIABLE = "LLM_SANDBOX_SERVER_TOKEN"
CERTIFICATE_VARIABLE = "LLM_SANDBOX_SERVER_CERTIFICATE"
_KERNEL_FILE = re.compile(r"kernel-([\w-]+)\.json")
_CHECK_TIMEOUT = 2.0
_CONNECT_TIMEOUT = 5.0


@dataclass(frozen=True)
class ServerAddress:
    """Address and credentials of a Jupyter server."""

    url: str
    """Base URL, ending in a slash."""
    token: str = field(default="", repr=False)
    certificate: str = ""
    """PEM file of the server's certificate, if the server uses TLS."""

    def path(self, path: str) -> str:
        """Return the HTTP address of `path` below `/llm-sandbox/api`."""
        return f"{self.url}llm-sandbox/api/{path}"

    def request(self, path: str, **options: Any) -> Any:
        """Return an authenticated tornado HTTPRequest for `path`."""
        from tornado.httpclient import HTTPRequest

        headers = {"Authorization": f"token {self.token}"} if self.token else _same_site()
        options = {"connect_timeout": _CONNECT_TIMEOUT, "follow_redirects": False, **options}
        return HTTPRequest(self.path(path), headers=headers, ssl_options=self._ssl(), **options)

    def channel(self, path: str, **options: Any) -> Any:
        """Return an authenticated request for a WebSocket at `path`."""
        request = self.request(path, **options)
        request.url = "ws" + request.url.removeprefix("http")
        return request

    def _ssl(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context()
        if self.certificate:
            # The exact certificate is known. Its host name is often not the loopback name, so the name is not checked.
            context.load_verify_locations(self.certificate)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


def _same_site() -> dict[str, str]:
    """Return a cookie and a header with the same value. A server without a token compares them to prevent forgery."""
    value = secrets.token_hex(16)
    return {"Cookie": f"_xsrf={value}", "X-XSRFToken": value}


def own_kernel_id() -> str | None:
    """Return the id of this kernel, from the name of its connection file; None outside a kernel."""
    try:
        from ipykernel.kernelapp import IPKernelApp
    except ImportError:
        return None
    from traitlets.config import Application

    app = Application.instance() if Application.initialized() else None
    if not isinstance(app, IPKernelApp):  # a terminal has IPython's own application
        return None
    match = _KERNEL_FILE.fullmatch(Path(app.connection_file).name)
    return match.group(1) if match else None


def candidates(environment: Mapping[str, str], runtime_folder: Path) -> Iterator[ServerAddress]:
    """Yield the servers that may have started this kernel, most likely first, without duplicates."""
    hub_token = environment.get("JUPYTERHUB_API_TOKEN", "")
    seen = set()
    for url, token, certificate in (
        (
            environment.get(URL_VARIABLE, ""),
            environment.get(TOKEN_VARIABLE, ""),
            environment.get(CERTIFICATE_VARIABLE, ""),
        ),
        _from_info_file(environment.get("JPY_PARENT_PID", ""), runtime_folder),
    ):
        if _is_http(url) and url not in seen:
            seen.add(url)
            yield ServerAddress(url.rstrip("/") + "/", token or hub_token, certificate)


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


def _from_info_file(parent: str, runtime_folder: Path) -> tuple[str, str, str]:
    """Read address and token of the server with this process id from its info file. The certificate stays empty."""
    if not parent.isdigit():
        return "", "", ""
    try:
        info = json.loads((runtime_folder / f"jpserver-{parent}.json").read_bytes())
        return str(info["url"]), str(info.get("token") or ""), ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", "", ""


def started_by_server(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if a Jupyter server is the parent of this kernel, so that a page may be open."""
    from jupyter_core.paths import jupyter_runtime_dir

    return bool(_from_info_file(environment.get("JPY_PARENT_PID", ""), Path(jupyter_runtime_dir()))[0])


async def find_own_server(kernel_id: str) -> ServerAddress | None:
    """Return the Jupyter server that owns this kernel and has the extension; None when there is none.

    Servers that are dead, belong to someone else or lack the extension are skipped within seconds.
    """
    from jupyter_core.paths import jupyter_runtime_dir

    for address in candidates(os.environ, Path(jupyter_runtime_dir())):
        if await _owns(address, kernel_id):
            return address
    return None


async def _owns(address: ServerAddress, kernel_id: str) -> bool:
    from tornado.httpclient import AsyncHTTPClient, HTTPClientError

    try:
        request = address.request(
            f"kernels/{kernel_id}", connect_timeout=_CHECK_TIMEOUT, request_timeout=_CHECK_TIMEOUT
        )
        answer = json.loads((await AsyncHTTPClient().fetch(request)).body)
    except (HTTPClientError, OSError, ValueError):
        return False
    return isinstance(answer, dict) and answer.get("kernel_id") == kernel_id


ANSWER_TIMEOUT = 15.0
START_TIMEOUT = 180.0
"""Maximum seconds for the start of a sandbox, enough for a busy engine or a large image."""


async def ask_server(
    address: ServerAddress,
    path: str,
    method: str = "GET",
    body: object = None,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> tuple[int, dict[str, Any]]:
    """Send a request to the server, and return the HTTP status and the answer.

    Raises:
        SandboxError: as reported by the server; SandboxLostError if the server does not answer.
    """
    from tornado.httpclient import AsyncHTTPClient, HTTPClientError

    request = address.request(
        path,
        method=method,
        body=json.dumps(body) if body is not None else None,
        request_timeout=timeout,
    )
    try:
        response = await AsyncHTTPClient().fetch(request, raise_error=False)
    except (HTTPClientError, OSError) as error:
        raise _silent(address, error) from error
    if response.code == 599:
        raise _silent(address, response.error)
    answer = _json(response.body)
    if response.code >= 400:
        raise _refusal(response.code, answer)
    return response.code, answer


def _silent(address: ServerAddress, error: BaseException | None) -> SandboxLostError:
    return SandboxLostError(
        f"The Jupyter server at {address.url} does not answer ({error}); restart it and the kernel."
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _refusal(code: int, answer: Mapping[str, Any]) -> Exception:
    """Return the exception for a refusal of the server."""
    message = str(answer.get("message") or f"The Jupyter server refused with HTTP {code}.")
    kind = getattr(errors, str(answer.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, SandboxError):
        return kind(message)
    return ValueError(message) if answer.get("error") == "ValueError" else SandboxError(message)
