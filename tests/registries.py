"""Package registries on this machine, with an own authority: an index, npm, an apt repository, git over HTTPS."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from llm_sandbox_nb.sandbox.network.authority import Authority
from llm_sandbox_nb.sandbox.network.internet import Internet
from llm_sandbox_nb.sandbox.network.streams import CountingStream

HOSTS = ("pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "deb.debian.org", "github.com")
ALLOW = ("pypi", "npm", "debian", "github", "github.com:22")
PUBLIC = "93.184.215.14"


class Registries(Internet):
    """An internet of these registries alone; every other name does not exist."""

    def __init__(self, ports: dict[int, int], authority: Authority) -> None:
        super().__init__()
        self.pem = authority.pem
        self._ports = ports

    async def addresses(self, host: str, port: int) -> list[str]:
        if host not in HOSTS:
            raise OSError("no such name")
        return [PUBLIC]

    async def connect(self, address: str, port: int, tls: ssl.SSLContext | None, host: str) -> CountingStream:
        assert tls is None, "no TLS is opened without a secret"
        return await super().connect("127.0.0.1", self._ports[port], None, host)


@contextlib.contextmanager
def registries(folder: Path) -> Iterator[Registries]:
    """Serve them from files in `folder`."""
    files = {
        **_index(),
        **_npm(),
        **_debian(folder / "deb"),
        ("files.pythonhosted.org", "/hello.txt"): b"hello",
        ("github.com", "/hello.txt"): b"hello",
    }
    _repository(folder / "repositories" / "one.git")
    authority = Authority(HOSTS)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            host = self.headers["Host"].partition(":")[0]
            if ".git/" in self.path:
                self._answer(200, *_git(self, folder / "repositories"))
                return
            body = files.get((host, self.path))
            kind = "text/html" if "/simple/" in self.path else "application/octet-stream"
            self._answer(200 if body is not None else 404, body or b"", [("Content-Type", kind)])

        do_POST = do_GET

        def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def choose(connection: ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = authority.context(name or HOSTS[0])

    context = authority.context(HOSTS[0])
    context.sni_callback = choose  # type: ignore[assignment] # typeshed means SSLObject alone
    plain, secure = (ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
    with socket.create_server(("127.0.0.1", 0)) as ssh:
        threads = [
            threading.Thread(target=one, daemon=True)
            for one in (plain.serve_forever, secure.serve_forever, lambda: _greet_ssh(ssh))
        ]
        for thread in threads:
            thread.start()
        ports = {80: plain.server_port, 443: secure.server_port, 22: ssh.getsockname()[1]}
        try:
            yield Registries(ports, authority)
        finally:
            for server in (plain, secure):
                server.shutdown()
                server.server_close()


def _greet_ssh(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as one:
                one.sendall(b"SSH-2.0-test\r\n")
                one.recv(100)


def _index() -> dict[tuple[str, str], bytes]:
    made, info = io.BytesIO(), "six-99.0.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("six.py", "answer = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: six\nVersion: 99.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    name = "six-99.0-py3-none-any.whl"
    page = f'<!DOCTYPE html><a href="https://files.pythonhosted.org/{name}">{name}</a>'
    return {
        ("pypi.org", "/simple/six/"): page.encode(),
        ("files.pythonhosted.org", f"/{name}"): made.getvalue(),
    }


def _npm() -> dict[tuple[str, str], bytes]:
    made = io.BytesIO()
    package = {"name": "left-pad", "version": "1.0.0", "main": "index.js"}
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in (("package.json", json.dumps(package)), ("index.js", "module.exports = 42\n")):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    packed = made.getvalue()
    digest = base64.b64encode(hashlib.sha512(packed).digest()).decode()
    where = "https://registry.npmjs.org/left-pad/-/left-pad-1.0.0.tgz"
    version = {**package, "dist": {"tarball": where, "integrity": f"sha512-{digest}"}}
    known = {"name": "left-pad", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    host = "registry.npmjs.org"
    return {(host, "/left-pad"): json.dumps(known).encode(), (host, "/left-pad/-/left-pad-1.0.0.tgz"): packed}


def _debian(folder: Path) -> dict[tuple[str, str], bytes]:
    """A repository of one package; its list is trusted by the line of its source, as nobody signs it."""
    control = folder / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(
        "Package: hello-proxy\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: x\n"
    )
    (folder / "usr" / "share").mkdir(parents=True)
    (folder / "usr" / "share" / "hello-proxy").write_text("hello")
    package = folder.with_suffix(".out")
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", folder, package], check=True, capture_output=True
    )
    content = package.read_bytes()
    listed = control.read_text() + f"Filename: pool/hello-proxy.deb\nSize: {len(content)}\n"
    plain = f"{listed}SHA256: {hashlib.sha256(content).hexdigest()}\n".encode()
    release = (
        "Suite: here\nCodename: here\nComponents: main\nArchitectures: amd64 arm64\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
    )
    top, host = "/debian/dists/here", "deb.debian.org"
    found = {(host, "/debian/pool/hello-proxy.deb"): content}
    for machine in ("amd64", "arm64"):
        for ending, packages in (("", plain), (".gz", gzip.compress(plain))):
            place = f"main/binary-{machine}/Packages{ending}"
            release += f" {hashlib.sha256(packages).hexdigest()} {len(packages)} {place}\n"
            found[host, f"{top}/{place}"] = packages
    found[host, f"{top}/Release"] = release.encode()
    return found


def _repository(folder: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main", str(folder))
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git("-C", str(folder), *who, "commit", "-q", "--allow-empty", "-m", "first")


def _git(request: BaseHTTPRequestHandler, folder: Path) -> tuple[bytes, list[tuple[str, str]]]:
    path, _, query = request.path.partition("?")
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    environment = {
        "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(folder), "GIT_HTTP_EXPORT_ALL": "1",
        "REQUEST_METHOD": request.command, "PATH_INFO": path, "QUERY_STRING": query,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""), "REMOTE_ADDR": "127.0.0.1",
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    }  # fmt: skip
    done = subprocess.run(
        ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    lines = (line.partition(": ") for line in head.decode().splitlines())
    return content, [(name, value) for name, _, value in lines if name != "Status"]
