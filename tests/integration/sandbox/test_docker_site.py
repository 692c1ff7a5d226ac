"""Behind a site's own authority, package index and proxy; and what apt and pip do when they can reach one."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from docker_help import docker_box

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]

SERVER = textwrap.dedent("""
    import http.server, ssl, threading
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"the index was asked for " + self.path.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 4433), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)
    server.serve_forever()
""")
SERVE = "python3 server.py > log 2>&1 & until grep -q ready log; do sleep .05; done"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with an authority and a certificate for localhost, which are one and the same."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"], check=True, capture_output=True,
    )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(("profile", "trusted"), [("standard", True), ("strict", True), ("standard", False)])
async def test_a_sites_authority_is_trusted_inside(profile: str, trusted: bool, authority: Path) -> None:
    fetch = "import urllib.request; print(urllib.request.urlopen('https://localhost:4433/x').read().decode())"
    bundle = authority / "cert.pem" if trusted else None
    async with docker_box(profile=profile, network="none", ca_bundle=bundle) as box:
        for name in ("cert.pem", "key.pem"):
            await box.write_file(name, (authority / name).read_bytes())
        await box.write_file("server.py", SERVER.encode())
        await box.run(SERVE)
        for command in ("curl -sS https://localhost:4433/x", f'python3 -c "{fetch}"'):
            result = await box.run(command, timeout=20)
            assert (b"asked for /x" in result.stdout) == trusted, result.text


async def test_a_sites_index_and_proxy_are_used_inside(authority: Path) -> None:
    settings = {"index_url": "https://localhost:4433/simple", "ca_bundle": authority / "cert.pem"}
    async with docker_box(network="none", proxy="http://localhost:1", **settings) as box:
        for name in ("cert.pem", "key.pem"):
            await box.write_file(name, (authority / name).read_bytes())
        await box.write_file("server.py", SERVER.encode())
        await box.run(SERVE)
        await box.run("pip download nothing --retries 0", timeout=40)
        assert b"GET /simple/nothing/" in (await box.run("cat log")).stdout
        assert b"localhost port 1" in (await box.run("curl http://elsewhere.invalid")).stderr


@pytest.mark.campaign
async def test_apt_and_pip_install_from_this_machines_indexes() -> None:
    """With what this machine uses itself: `.ci/base-image.sh` gave its apt mirror to the image."""
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    site = {
        "ca_bundle": Path(certificates) if certificates else None,
        "index_url": os.environ.get("PIP_INDEX_URL"),
        "proxy": os.environ.get("https_proxy"),
    }
    async with docker_box(**site) as box:
        apt = await box.run("apt-get update -qq && apt-get install -y -qq hello && hello", timeout=120)
        assert apt.stdout.endswith(b"Hello, world!\n"), apt.text
        pip = await box.run("pip install -q six && python3 -c 'import six; print(six.__name__)'", timeout=120)
        assert pip.stdout.endswith(b"six\n"), pip.text
