"""Our images, building, pulling, listing and checking them."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_help import files_in_tar, image_from, one_sentence
from loopback_http import LoopbackHandler, LoopbackServer

from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import (
    DEFAULT_IMAGE,
    PROGRAMS,
    SCIENTIFIC,
    SLIM_IMAGE,
    _build_context,
    build_image,
    check_image,
    find_image,
    list_images,
    pull_image,
)
from llm_sandbox_nb.sandbox.errors import ImageError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
ROOT = Path(__file__).parents[3]


def test_full_image_is_small_and_has_all() -> None:
    found = check_image(DEFAULT_IMAGE)
    assert found.usable, found.problem
    assert found.missing == ()
    assert {*PROGRAMS} <= {*found.programs}
    assert {*SCIENTIFIC} <= {*found.packages}
    assert all(version[0].isdigit() for version in found.programs.values()), found.programs
    assert found.size <= 1.15e9


def test_slim_image_is_small_and_says_what_it_lacks() -> None:
    found = check_image(SLIM_IMAGE)
    assert found.usable, found.problem
    assert {"numpy", "sympy", "mpmath", "matplotlib", "pandas", "pillow"} <= {*found.packages}
    assert found.missing == ("gcc", "ffmpeg", "ipython", "scipy", "chardet")
    assert found.size <= 530e6


PROGRAM = """
import chardet, io, subprocess, matplotlib.pyplot, mpmath, numpy, pandas, scipy.optimize, sympy
from PIL import Image
matplotlib.pyplot.plot(numpy.arange(3)); matplotlib.pyplot.title("Zürich 東京")
picture = io.BytesIO(); matplotlib.pyplot.savefig(picture); assert Image.open(picture).size == (640, 480)
assert scipy.optimize.brentq(lambda x: x * x - 2, 0, 2) - 2**0.5 < 1e-9
assert str(sympy.integrate(sympy.Symbol("x") ** 2)) == "x**3/3"
assert str(mpmath.mp.pi).startswith("3.14159")
assert pandas.DataFrame({"a": [1, 2]}).a.sum() == 3
open("hello.c", "w").write('#include <stdio.h>\\nint main() { puts("hello"); }')
subprocess.run("gcc hello.c -o hello && ./hello && git init -q . && curl --version", shell=True, check=True)
subprocess.run("wget --version && ipython -c '6 * 7'", shell=True, check=True)
make = "ffmpeg -loglevel error -f lavfi -i testsrc=duration=1 -f lavfi -i sine=duration=1"
subprocess.run(f"{make} -pix_fmt yuv420p out.mp4", shell=True, check=True)
subprocess.run("ffprobe -v error -show_entries stream=codec_name out.mp4", shell=True, check=True)
subprocess.run("fc-list : family", shell=True, check=True)
"""


@pytest.mark.campaign
def test_full_image_does_the_work() -> None:
    container = connect().containers.create(
        DEFAULT_IMAGE, ["python3", "-c", PROGRAM], user="1000", network_mode="none", read_only=False
    )
    try:
        container.start()
        code = container.wait(timeout=120)["StatusCode"]
        output = container.logs().decode()
    finally:
        container.remove(force=True)
    assert code == 0, output
    for word in ("hello", "h264", "aac", "Noto Color Emoji", "Liberation Sans", "Droid Sans Fallback"):
        assert word in output


@pytest.mark.campaign
def test_modules_are_compiled_in_the_image() -> None:
    """Else every sandbox would compile them again at its first import."""
    use = "touch -d '1 second ago' /tmp/before; python3 -c 'import numpy, pandas, sympy'"
    script = f"{use}; find / -xdev -newer /tmp/before -name '*.pyc'"
    output = connect().containers.run(SLIM_IMAGE, ["bash", "-c", script], remove=True, network_mode="none")
    assert output == b""


def test_nothing_of_a_site_stays_but_its_certificates() -> None:
    history = json.dumps(connect().api.history(DEFAULT_IMAGE))
    assert "index-url" not in history
    script = "cat /etc/pip.conf /etc/apt/apt.conf.d/99site; ls -d /etc/pip.conf /root/.cache /tmp/*"
    output = connect().containers.run(
        DEFAULT_IMAGE, ["bash", "-c", f"{script} 2>/dev/null; true"], remove=True
    )
    assert output == b""


def test_build_context_carries_the_site(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
         "/CN=site", "-keyout", tmp_path / "key.pem", "-out", bundle], check=True, capture_output=True,
    )  # fmt: skip
    certificate = bundle.read_text()
    bundle.write_text(f"# a comment\n{certificate}{certificate}")
    with tarfile.open(fileobj=_build_context(bundle, "https://user:word@index.example/simple")) as archive:
        names = archive.getnames()
        settings = archive.extractfile("site/pip.conf")
        assert settings is not None
        assert settings.read() == b"[global]\nindex-url = https://user:word@index.example/simple\n"
    assert [name for name in names if name.startswith("site/ca/site-")] == ["site/ca/site-000.crt"]
    assert "Dockerfile" in names


def test_wrong_ca_bundles(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        build_image("slim", ca_bundle=tmp_path / "missing.pem")
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(ImageError) as caught:
        build_image("slim", ca_bundle=tmp_path / "no.pem")
    assert "holds no certificate" in one_sentence(caught.value)


def test_build_that_fails_says_why() -> None:
    with pytest.raises(ImageError) as caught:
        build_image("slim", "llm-sandbox-nb-test:failed", base_image="localhost:1/nothing:here")
    assert str(caught.value).startswith("The image llm-sandbox-nb-test:failed could not be built: ")


@pytest.mark.campaign
def test_build_as_ci_does() -> None:
    """`.ci/image.sh`, through the command line, with what this machine needs to reach its indexes."""
    environment = {**os.environ, "IMAGE_TARGETS": "slim", "PYTHON": sys.executable}
    done = subprocess.run(
        [ROOT / ".ci" / "image.sh"], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == SLIM_IMAGE
    assert "Step 1/" in done.stderr + done.stdout


def test_list_has_our_images_with_their_sizes() -> None:
    found = {image.name: image for image in list_images()}
    assert {DEFAULT_IMAGE, SLIM_IMAGE} <= {*found}
    assert found[SLIM_IMAGE].size == find_image(SLIM_IMAGE)["Size"]
    assert re.match(r"20\d\d-\d\d-\d\dT", found[SLIM_IMAGE].created)


def test_check_leaves_no_container() -> None:
    def checks(name: str) -> list[object]:
        return connect().api.containers(all=True, filters={"label": f"llm-sandbox-nb.check={name}"})

    with image_from(SLIM_IMAGE, "RUN true") as name:
        check_image(name)
        assert checks(name) == []


@pytest.fixture
def registry() -> Iterator[str]:
    """A registry on loopback with one tiny image in it; engines take loopback registries without TLS."""
    layer = gzip.compress(files_in_tar(hello=secrets.token_bytes(8)), mtime=0)
    plain = hashlib.sha256(gzip.decompress(layer)).hexdigest()
    layers = {"type": "layers", "diff_ids": [f"sha256:{plain}"]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": layers}).encode()
    kind = "application/vnd.docker."
    manifest = json.dumps({
        "schemaVersion": 2,
        "mediaType": f"{kind}distribution.manifest.v2+json",
        "config": _descriptor(f"{kind}container.image.v1+json", config),
        "layers": [_descriptor(f"{kind}image.rootfs.diff.tar.gzip", layer)],
    }).encode()  # fmt: skip
    blobs = {_digest(data): data for data in (layer, config)}

    class Handler(LoopbackHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            found = (
                manifest if "/manifests/" in self.path else b"{}" if self.path == "/v2/" else blobs.get(name)
            )
            known = found is not None and "missing" not in self.path
            body = found if known and found is not None else b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", f"{kind}distribution.manifest.v2+json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

    with LoopbackServer(Handler) as server:
        yield f"127.0.0.1:{server.server_port}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


def test_pull(registry: str) -> None:
    lines: list[str] = []
    assert pull_image(f"{registry}/tiny", on_progress=lines.append) == f"{registry}/tiny:latest"
    try:
        assert any("Pull complete" in line for line in lines)
        assert find_image(f"{registry}/tiny:latest")
    finally:
        connect().images.remove(f"{registry}/tiny:latest")


@pytest.mark.parametrize("name", ["missing", "missing:1"])
def test_pull_of_what_is_not_there(registry: str, name: str) -> None:
    with pytest.raises(ImageError) as caught:
        pull_image(f"{registry}/{name}")
    assert one_sentence(caught.value).startswith(f"The image {registry}/{name} could not be pulled: ")


def test_pull_without_a_registry() -> None:
    with pytest.raises(ImageError) as caught:
        pull_image("localhost:1/nothing:1")
    assert "could not be pulled" in one_sentence(caught.value)
