"""Serves all `VARIANTS` on one port, each below a path of its own, and checks every request as strict servers do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loopback_http import LoopbackHandler, LoopbackServer
from scripted_strict import StrictError, check_request
from server_variants import VARIANTS, Refusal, Variant
from variant_replies import LAST, dumped


class VariantServer(LoopbackServer):
    """Serves all variants. `violations` says which requests a strict server would have refused, and why."""

    def __init__(self, variants: Sequence[Variant] = VARIANTS) -> None:
        self.variants = variants
        self.violations: list[str] = []
        self.bodies: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """The requests, by path."""
        self._refused: dict[str, set[str]] = defaultdict(set)
        super().__init__(_Handler)

    def url_of(self, variant: Variant, client: str) -> str:
        return f"{self.root}/{self.variants.index(variant)}/{client}/v1"

    def requests(self, variant: Variant, client: str) -> list[dict[str, Any]]:
        return self.bodies[f"/{self.variants.index(variant)}/{client}/v1/chat/completions"]

    def check(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        """Note what a strict server refuses, whatever the variant itself refuses."""
        problems = []
        try:
            check_request(body)
        except StrictError as error:
            problems.append(str(error))
        if headers.get("content-type") != "application/json" or headers.get("authorization") != "Bearer key":
            problems.append(f"the headers are {headers}")
        if again := {name for name in self._refused[path] if body.get(name)}:
            problems.append(f"{again} were sent again after they had been refused")
        self.violations += [f"{path}: {problem}" for problem in problems]

    def refusal(self, variant: Variant, path: str, body: dict[str, Any]) -> Refusal | None:
        """What this variant answers to a request that it does not take."""
        for name, refusal in variant.refuse.items():
            if body.get(name):
                self._refused[path].add(name)
                return refusal
        return None


class _Handler(LoopbackHandler):
    server: VariantServer

    def do_POST(self) -> None:
        server, body = self.server, self.body()
        variant = server.variants[int(self.path.split("/")[1])]
        server.bodies[self.path].append(body)
        server.check(self.path, self.lower_headers(), body)
        if refusal := server.refusal(variant, self.path, body):
            status, said = refusal
            data, kind = (
                (said.encode(), "text/plain")
                if isinstance(said, str)
                else (dumped(said).encode(), "application/json")
            )
            return self._send(status, kind, data)
        if variant.first_answer and len(server.bodies[self.path]) == 1:
            return self._send(*variant.first_answer)
        replies = sum(one["role"] == "assistant" for one in body["messages"])
        data = variant.write(LAST if replies else variant.first, replies)
        return self._send(200, variant.type, data, variant)

    def _send(self, status: int, kind: str, data: bytes, variant: Variant | None = None) -> None:
        self.send_response(status)
        if kind:
            self.send_header("content-type", kind)
        for name, value in (variant.headers if variant else {}).items():
            self.send_header(name, value)
        if variant is None or variant.length:
            self.send_header("content-length", str(len(data)))
        else:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        for piece in (
            [data[at : at + 1] for at in range(len(data))] if variant and variant.single_bytes else [data]
        ):
            self.wfile.write(piece)
            self.wfile.flush()
        if variant and variant.stays_open:
            self.rfile.read(1)  # until the client hangs up
