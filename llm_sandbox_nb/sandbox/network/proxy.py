"""Proxy behind a sandbox's door. It decides to which servers programs inside can connect, and what they can send.

A program sends a CONNECT request, or a single plain HTTP request. The order of the checks of the request matters. The
form of the host's name is checked first, then the allow-list. Only then is the name looked up, and only once. The
resulting addresses are checked, and the proxy connects to one of them. After a CONNECT request, the program must begin
TLS for the same name; `Proxy._tunnel` lists the exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from llm_sandbox_nb.errors import LLMSandboxError
from llm_sandbox_nb.sandbox.contract import Connection
from llm_sandbox_nb.sandbox.network.authority import Authority
from llm_sandbox_nb.sandbox.network.internet import Internet
from llm_sandbox_nb.sandbox.network.policy import (
    PUBLIC,
    USUAL_PORTS,
    HostRule,
    Policy,
    PolicyRefusalError,
    checked_host,
    is_literal,
    read_port,
)
from llm_sandbox_nb.sandbox.network.secrets import Scrubber, Secret, forms_of, put_in, put_in_body
from llm_sandbox_nb.sandbox.network.streams import (
    ClosableStream,
    CountingStream,
    NoTlsError,
    PrefixedStream,
    Stream,
    TlsStream,
    pass_on,
    read_hello,
)

if TYPE_CHECKING:
    import h11

HEAD_TIMEOUT = 30.0
"""Seconds in which the head of a request, or the first TLS message, must arrive."""
IDLE_TIMEOUT = 600.0
"""Seconds after which a connection is closed if no data has passed in either direction."""
MAX_BODY_BYTES = 1024 * 1024
"""Maximum bytes of a body into which secrets are inserted. Longer bodies are forwarded unchanged."""
MAX_REASON_LENGTH = 300
"""Maximum characters of `Connection.reason`. The message of an invalid request can repeat the whole request."""
_MAX_HEAD_BYTES = 64 * 1024
_HOP_HEADERS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
     b"trailer", b"upgrade", b"http2-settings", b"expect")
)  # fmt: skip
_CONNECTION_WORDS = frozenset(
    (b"close", b"keep-alive", b"upgrade", b"te", b"http2-settings", b"proxy-connection", b"")
)


class _RefusalError(LLMSandboxError):
    """Error with which the proxy itself answers a request of the client, in place of the server."""

    def __init__(self, status: int, reason: str, decision: Literal["refused", "failed"] = "refused") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.decision = decision


class Proxy:
    """Proxy for the connections of a sandbox.

    The attribute `policy` may change at any time. The attribute `report` is a function that is called with each
    connection when the connection ends.
    """

    def __init__(
        self,
        policy: Policy,
        secrets: Sequence[Secret] = (),
        *,
        internet: Internet | None = None,
    ) -> None:
        self.policy = policy
        self.internet = internet or Internet()
        self.report: Callable[[Connection], None] = lambda connection: None
        self._secrets = secrets
        hosts = dict.fromkeys(host for secret in secrets for host in secret.hosts)
        self.authority = Authority(list(hosts)) if secrets else None

    async def serve(self, client: ClosableStream) -> None:
        """Serve one connection to its end. Raises ConnectionError if the client is gone."""
        import h11

        speaker = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        record = Connection("", 0, started=time.time())
        upstream: CountingStream | None = None
        try:
            request = await _read_head(speaker, client)
            host, port, path = _target(request)
            record.host, record.port = host, port
            tunnels = request.method == b"CONNECT"
            mine = [secret for secret in self._secrets if host in secret.hosts]
            upstream, rule = await self._connected(record, host, port, tunnels and bool(mine))
            if tunnels:
                await _send(speaker, client, h11.Response(status_code=200, headers=[], reason=b"Connected"))
                tunnel = PrefixedStream(speaker.trailing_data[0], client)
                await self._tunnel(record, tunnel, upstream, rule, mine)
            elif mine:
                # Without TLS, no value is inserted. But the host may return a value from an earlier request.
                request, body, hidden, _ = await _with_secrets(speaker, client, request, [], mine)
                await _exchange(speaker, client, request, path, upstream, body, Scrubber(hidden))
            else:
                await _exchange(speaker, client, request, path, upstream, _Body())
        except _RefusalError as refusal:
            record.decision, record.reason = refusal.decision, refusal.reason
            with contextlib.suppress(ConnectionError):
                await _answer(speaker, client, refusal, record)
        except NoTlsError as error:
            record.decision, record.reason = "refused", str(error)
        except (ConnectionError, TimeoutError, h11.ProtocolError) as error:
            record.decision, record.reason = "failed", str(error) or "it was silent for too long"
        finally:
            if upstream is not None:
                record.sent, record.received = upstream.sent, upstream.received
                upstream.abort()
            record.duration = time.time() - record.started
            record.reason = record.reason[:MAX_REASON_LENGTH]
            if record.host or record.decision == "refused":
                self.report(record)
        await client.close()

    # ------------------------------------------------------------------------------------------ where it goes

    async def _connected(
        self, record: Connection, host: str, port: int, tls: bool
    ) -> tuple[CountingStream, HostRule]:
        """Check the host, look up its addresses once, check the addresses, and connect to one of them.

        Return the connection, and the entry of the allow-list that allows it. With `tls`, the proxy speaks TLS itself.
        """
        try:
            rule = self.policy.check(host, port)
        except PolicyRefusalError as refusal:
            raise _RefusalError(403, str(refusal)) from None
        record.rule = str(rule)
        try:
            found = [host] if is_literal(host) else await self.internet.addresses(host, port)
        except OSError:
            raise _RefusalError(502, "the name has no address", "failed") from None
        refusals, usable = [], []
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            try:
                if "%" in text:
                    raise PolicyRefusalError("link-local address")
                self.policy.check_address(address, port, rule)
                usable.append(str(address))
            except PolicyRefusalError as error:
                record.address = str(address)
                refusals.append(str(error))
        if not usable:
            raise _RefusalError(403, refusals[0] if refusals else "the name has no address")
        problem = ""
        for candidate in usable[:4]:
            record.address = candidate
            try:
                context = self.internet.tls if tls else None
                return await self.internet.connect(candidate, port, context, host), rule
            except ssl.SSLError as error:
                problem = f"its certificate cannot be trusted ({error.reason})"
            except (OSError, TimeoutError) as error:
                problem = f"it does not answer ({getattr(error, 'strerror', '') or 'no answer in time'})"
        raise _RefusalError(502, problem, "failed")

    async def _tunnel(
        self,
        record: Connection,
        client: Stream,
        upstream: CountingStream,
        rule: HostRule,
        secrets: list[Secret],
    ) -> None:
        """Forward the data after a CONNECT request.

        Only TLS for the same name passes, with two exceptions for hosts that get no secrets. All data passes if the
        allow-list names the port, and the port is not 80 or 443. All data also passes if the connection is allowed only
        because the network is `public`.
        """
        import h11

        if not secrets and (rule is PUBLIC or (record.port not in USUAL_PORTS and rule.port is not None)):
            await _join(client, upstream)
            return
        async with asyncio.timeout(HEAD_TIMEOUT):
            first, name = await read_hello(client)
        if name != record.host:
            raise NoTlsError(f"its TLS is for {name[:80]}, not for {record.host}")
        if not secrets:
            await _join(PrefixedStream(first, client), upstream)
            return
        assert self.authority is not None
        tls = TlsStream(PrefixedStream(first, client), self.authority.context(record.host))
        speaker = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                await tls.handshake()
            request = await _read_head(speaker, tls)
            _check_inner(request, record)
            request, body, hidden, record.secrets = await _with_secrets(
                speaker, tls, request, secrets, secrets
            )
            await _exchange(speaker, tls, request, request.target, upstream, body, Scrubber(hidden))
        except _RefusalError as refusal:
            record.decision, record.reason = refusal.decision, refusal.reason
            await _answer(speaker, tls, refusal, record)
        await tls.end_writing()


# ---------------------------------------------------------------------------------------------- requests


async def _read_head(speaker: h11.Connection, client: Stream) -> h11.Request:
    """Read the head of the client's only request. Raises ConnectionError, _RefusalError."""
    import h11

    try:
        async with asyncio.timeout(HEAD_TIMEOUT):
            while True:
                event = speaker.next_event()
                if isinstance(event, h11.Request):
                    break
                if event is not h11.NEED_DATA:
                    raise ConnectionError("the client has sent nothing")
                speaker.receive_data(await client.read())
    except h11.RemoteProtocolError as error:
        raise _RefusalError(400, f"it is not a valid request ({error})") from error
    except TimeoutError:
        raise _RefusalError(408, "its head did not come in time", "failed") from None
    _check_framing(event)
    if event.method == b"CONNECT" and not isinstance(speaker.next_event(), h11.EndOfMessage):
        raise _RefusalError(400, "a CONNECT request cannot have a body")
    return event


def _check_framing(request: h11.Request) -> None:
    """Refuse a head that the proxy and the server could understand differently."""
    named: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        named.setdefault(name, []).append(value)
    words = {word.strip().lower() for value in named.get(b"connection", []) for word in value.split(b",")}
    length, coding = named.get(b"content-length", []), named.get(b"transfer-encoding", [])
    if len(named.get(b"host", [])) > 1 or len(length) > 1 or len(coding) > 1 or (length and coding):
        raise _RefusalError(400, "its headers contradict each other")
    if coding and coding[0].lower() != b"chunked":
        raise _RefusalError(400, "its transfer coding is not chunked")
    if not words <= _CONNECTION_WORDS:
        raise _RefusalError(400, "its Connection header names other headers")
    if request.method == b"TRACE":
        raise _RefusalError(405, "TRACE requests are not forwarded")


def _target(request: h11.Request) -> tuple[str, int, bytes]:
    """Return host and port of a request, and the path for the request to the server. The path of a CONNECT is empty."""
    text = request.target.decode("latin-1")
    if request.method == b"CONNECT":
        authority, path = text, b""
    else:
        scheme, separator, rest = text.partition("://")
        if scheme.lower() != "http" or not separator:
            raise _RefusalError(400, "it is neither CONNECT nor a request for http://")
        end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
        authority, tail = rest[:end], rest[end:].partition("#")[0]
        path = (tail if tail.startswith("/") else f"/{tail}").encode("latin-1")
    host, port = _authority(authority, None if request.method == b"CONNECT" else 80)
    header = next((value for name, value in request.headers if name == b"host"), None)
    if request.method != b"CONNECT" or header:
        usual = 80 if request.method != b"CONNECT" else 443
        if header is None or _authority(header.decode("latin-1"), usual) != (host, port):
            raise _RefusalError(400, "its address and its Host header differ")
    return host, port, path


def _authority(text: str, usual: int | None) -> tuple[str, int]:
    """Parse `host:port`. If the port is missing, take the port `usual`, or refuse the request if `usual` is None."""
    try:
        if text.startswith("["):
            host, _, port = text[1:].partition("]")
            port = port.removeprefix(":")
            if ":" not in host:
                raise ValueError("not an address")
        else:
            host, _, port = text.partition(":")
        if not port and usual is None:
            raise ValueError("a port is needed")
        return checked_host(host), read_port(port) if port else usual or 0
    except ValueError:
        raise _RefusalError(400, f"{text[:80]!r} is not a host that can be checked") from None


def _check_inner(request: h11.Request, record: Connection) -> None:
    """Refuse a request inside TLS that is for another host than the TLS connection."""
    header = next((value for name, value in request.headers if name == b"host"), b"")
    if _authority(header.decode("latin-1"), 443) != (record.host, record.port):
        raise _RefusalError(421, "its Host header names another host than its TLS connection")
    if not request.target.startswith(b"/"):
        raise _RefusalError(400, "its target is not a path")


@dataclass
class _Body:
    """Part of a request's body that was read before the head is forwarded. `whole` is True if this is all of it."""

    held: bytes = b""
    whole: bool = False


async def _with_secrets(
    speaker: h11.Connection,
    client: Stream,
    request: h11.Request,
    secrets: list[Secret],
    known: list[Secret],
) -> tuple[h11.Request, _Body, list[bytes], list[str]]:
    """Insert the values of `secrets` into a request, and ask the server for an uncompressed and complete reply.

    Only such a reply can be searched for the values. `known` are all secrets of the host.

    Returns:
        The request, the part of its body that was read, the texts that a reply must not repeat, and the names of the
        inserted secrets.
    """
    import h11

    headers, hidden, used = put_in(list(request.headers), secrets)
    hidden += [form for secret in known for form in forms_of(secret.value)]
    host = next(value.decode("latin-1") for name, value in headers if name == b"host")
    for_body = [secret for secret in secrets if _authority(host, 443)[0] in secret.body_hosts]
    body = _Body()
    left_out = {b"accept-encoding", b"range"}
    if for_body:
        body = await _read_body(speaker, client)
        if body.whole:
            kind = b" ".join(value for name, value in headers if name == b"content-type").decode("latin-1")
            body.held, in_body = put_in_body(body.held, kind.lower(), for_body)
            used = [*dict.fromkeys([*used, *in_body])]
            if body.held:
                left_out |= {b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in headers if name not in left_out]
    if b"content-length" in left_out:
        headers.append((b"content-length", b"%d" % len(body.held)))
    headers.append((b"accept-encoding", b"identity"))
    return h11.Request(method=request.method, target=request.target, headers=headers), body, hidden, used


async def _read_body(speaker: h11.Connection, client: Stream) -> _Body:
    """Read the body of a request. Read only the beginning of a body that is longer than `MAX_BODY_BYTES`."""
    held: list[bytes] = []
    async with asyncio.timeout(IDLE_TIMEOUT):
        while sum(map(len, held)) <= MAX_BODY_BYTES:
            piece = await _next_piece(speaker, client)
            if piece is None:
                return _Body(b"".join(held), True)
            held.append(piece)
    return _Body(b"".join(held))


async def _exchange(
    speaker: h11.Connection,
    client: Stream,
    request: h11.Request,
    path: bytes,
    upstream: CountingStream,
    body: _Body,
    scrubber: Scrubber | None = None,
) -> None:
    """Forward one request and its reply.

    Data that the client sends after the request is forwarded only if the request has opened a WebSocket.

    Args:
        speaker: state of the HTTP connection with the client.
        path: path for the request to the server.
        body: part of the request's body that was read already.
        scrubber: filter for the reply. None if the host gets no secrets.
    """
    import h11

    # With secrets there is no WebSocket, because its messages could not be searched for a secret.
    upgrades = [] if scrubber else [value.lower() for name, value in request.headers if name == b"upgrade"]
    websocket = upgrades == [b"websocket"]
    headers = [(name, value) for name, value in request.headers if name not in _HOP_HEADERS]
    headers += (
        [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
        if websocket
        else [(b"connection", b"close")]
    )
    server = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    await _send(server, upstream, h11.Request(method=request.method, target=path, headers=headers))
    watch = _Watch()
    replying = asyncio.create_task(_reply(speaker, client, server, upstream, scrubber, watch.heard))
    others = (_upload(speaker, client, server, upstream, body, watch.heard), watch.wait())
    tasks: set[asyncio.Task[Any]] = {replying, *map(asyncio.create_task, others)}
    try:
        pending = tasks
        while not replying.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        switched = replying.result()
    finally:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.wait(tasks)
    if switched:
        await _join(
            PrefixedStream(speaker.trailing_data[0], client),
            PrefixedStream(server.trailing_data[0], upstream),
        )


async def _upload(
    speaker: h11.Connection,
    client: Stream,
    server: h11.Connection,
    upstream: CountingStream,
    body: _Body,
    heard: Callable[[], None],
) -> None:
    """Forward the body of the request: first `body`, which was read already, then the rest."""
    import h11

    piece: bytes | None = body.held
    with contextlib.suppress(ConnectionError):  # a server that refuses the body may still have sent its reply
        while piece is not None:
            heard()
            if piece:
                await _send(server, upstream, h11.Data(data=piece))
            piece = None if body.whole else await _next_piece(speaker, client)
        await _send(server, upstream, h11.EndOfMessage())


async def _next_piece(speaker: h11.Connection, client: Stream) -> bytes | None:
    """Read the next piece of a request's body. Return None at the end of the body."""
    import h11

    while True:
        event = speaker.next_event()
        if event is h11.NEED_DATA:
            if speaker.they_are_waiting_for_100_continue:
                await _send(speaker, client, h11.InformationalResponse(status_code=100, headers=[]))
            speaker.receive_data(await client.read())
        elif isinstance(event, h11.Data):
            return bytes(event.data)
        else:
            return None


async def _reply(
    speaker: h11.Connection,
    client: Stream,
    server: h11.Connection,
    upstream: CountingStream,
    scrubber: Scrubber | None,
    heard: Callable[[], None],
) -> bool:
    """Forward the reply. Return True if both sides have switched to WebSocket."""
    import h11

    left = None
    while True:
        event = server.next_event()
        if event is h11.NEED_DATA and left:
            # The reply need not be searched for secrets, so the rest of its body is forwarded as it is.
            if await pass_on(upstream, client, most=left, heard=heard) < left:
                raise ConnectionError("the server has closed the connection")
            return False
        if event is h11.NEED_DATA:
            data = await upstream.read()
            heard()
            server.receive_data(data)
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                await _send(speaker, client, event)
                return True
        elif isinstance(event, h11.Response):
            await _send(speaker, client, _passed_on(event, scrubber))
            if scrubber is None:
                left = next((int(value) for name, value in event.headers if name == b"content-length"), None)
        elif isinstance(event, h11.Data):
            left = left and left - len(event.data)
            data = bytes(event.data) if scrubber is None else scrubber.feed(bytes(event.data))
            await _send(speaker, client, h11.Data(data=data))
        elif isinstance(event, h11.EndOfMessage):
            if scrubber and (rest := scrubber.feed(b"", last=True)):
                await _send(speaker, client, h11.Data(data=rest))
            await _send(speaker, client, h11.EndOfMessage())
            return False
        else:
            raise ConnectionError("the server has closed the connection")


def _passed_on(response: h11.Response, scrubber: Scrubber | None) -> h11.Response:
    """Return the head of a reply that is forwarded to the client."""
    import h11

    left_out = _HOP_HEADERS | ({b"content-length"} if scrubber else set())
    headers = [(name, value) for name, value in response.headers if name not in left_out]
    if scrubber:
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in headers):
            raise _RefusalError(
                502, "its reply is compressed, so it cannot be searched for the secret", "failed"
            )
        headers = [(name, scrubber.clean(value)) for name, value in headers if not scrubber.finds(name)]
    headers.append((b"connection", b"close"))
    reason = scrubber.clean(bytes(response.reason)) if scrubber else bytes(response.reason)
    return h11.Response(status_code=response.status_code, headers=headers, reason=reason)


async def _answer(
    speaker: h11.Connection, client: Stream, refusal: _RefusalError, record: Connection
) -> None:
    """Answer a request that was refused or has failed with a text for the model, if an answer is still possible."""
    import h11

    if speaker.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    where = f"{record.host}:{record.port}" if record.host else "This request"
    if refusal.decision == "refused":
        text = (
            f"{where} is refused by the network policy of this sandbox: {refusal.reason}. Do not retry; work without "
            "it, or say in your answer that the user can add it to the option 'allow'."
        )
    else:
        text = f"{where} failed: {refusal.reason}."
    body = f"{text}\n".encode("ascii", "replace")
    headers = [
        ("Content-Type", "text/plain"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        ("X-Sandbox-Policy", refusal.decision),
    ]
    with contextlib.suppress(h11.LocalProtocolError):
        response = h11.Response(status_code=refusal.status, headers=headers, reason=body.strip())
        await _send(speaker, client, response, h11.Data(data=body), h11.EndOfMessage())


async def _send(speaker: h11.Connection, stream: Stream, *events: h11.Event) -> None:
    data = b"".join(filter(None, (speaker.send(event) for event in events)))
    if data:
        await stream.write(data)


# ------------------------------------------------------------------------------------------------- bytes


async def _join(client: Stream, upstream: Stream) -> None:
    """Forward bytes in both directions until both have ended, or nothing was sent for `IDLE_TIMEOUT`."""
    watch = _Watch()

    async def to_end(source: Stream, target: Stream) -> int:
        passed = await pass_on(source, target, heard=watch.heard)
        await target.end_writing()
        return passed

    await _first_failure(to_end(client, upstream), to_end(upstream, client), watching=watch.wait())


class _Watch:
    """Timer that raises an error if `heard` is not called for a long time."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._at = self._now()

    def heard(self) -> None:
        self._at = self._now()

    async def wait(self) -> int:
        """Wait for a silence of `IDLE_TIMEOUT`. Raises TimeoutError."""
        while (left := self._at + IDLE_TIMEOUT - self._now()) > 0:  # noqa: ASYNC110 - `heard` sets no event
            await asyncio.sleep(left)
        raise TimeoutError("it was silent for too long")


async def _first_failure(*works: Awaitable[int], watching: Awaitable[int]) -> list[int]:
    """Run `works` at the same time, and return their results.

    If one of them or `watching` fails, cancel all, and raise the error.
    """
    tasks: list[asyncio.Future[int]] = [asyncio.ensure_future(work) for work in works]
    watch = asyncio.ensure_future(watching)
    try:
        pending: Iterable[asyncio.Future[int]] = tasks
        while pending:
            done, rest = await asyncio.wait({*pending, watch}, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
            pending = rest - {watch}
        return [task.result() for task in tasks]
    finally:
        for unfinished in (*tasks, watch):
            unfinished.cancel()
        await asyncio.wait({*tasks, watch})
