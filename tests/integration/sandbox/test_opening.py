"""Opening sandboxes: choices, checks, and what `auto` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import support
from shared_sandboxes import isolated

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.sandbox.contract import Directories
from llm_sandbox_nb.sandbox.errors import IsolationUnavailableError, SandboxError, SandboxLostError
from llm_sandbox_nb.sandbox.limits import Limits
from llm_sandbox_nb.sandbox.open import start_sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"isolation": "dokcer"}, "Unknown isolation 'dokcer' (did you mean 'docker'?): choose"),
        ({"profile": "lax"}, "Unknown profile 'lax': choose 'standard' or 'strict'."),
        ({"network": "closed"}, "Unknown network 'closed': choose 'none', 'allow', 'public' or 'open'."),
        ({"isolation": "bubblewrap", "image": "debian"}, "An image ('debian') needs isolation 'docker'"),
        ({"isolation": "process", "network": "none"}, "isolation 'process' has no network 'none'"),
        ({"limits": Limits(memory_bytes=2**20)}, "The limit memory_bytes is 1048576; give at least 16777216"),
        ({"limits": Limits(pids=7)}, "The limit pids is 7; give at least 8, or None for no limit."),
        ({"limits": Limits(cpus=-1)}, "The limit cpus is -1; give at least 0.01"),
        ({"limits": Limits(files=0)}, "The limit files is 0; give at least 1"),
        (
            {"limits": Limits(memory_bytes=10**300)},
            "The limit memory_bytes is 1e+300; give at most 1152921504606846976",
        ),
        (
            {"limits": Limits(pids=10**9)},
            "The limit pids is 1e+09; give at most 4194304, or None for no limit.",
        ),
        ({"limits": Limits(pids=10**400)}, "The limit pids is far too large; give at most 4194304"),
        ({"proxy": "squid"}, "The proxy 'squid' is not a URL with a host; give one such as http://"),
        ({"env": {"A=B": "x"}}, "'A=B' cannot be an environment variable"),
        ({"env": {"A": "\0"}}, "'A' cannot be an environment variable"),
    ],
)
def test_wrong_options_are_refused_at_once_in_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        open_sandbox(**options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@isolated
def test_a_sandbox_starts_with_the_smallest_limits(isolation: str) -> None:
    limits = Limits(memory_bytes=16 * 1024**2, pids=8)

    async def count() -> bytes:
        async with open_sandbox(isolation, limits=limits) as box:
            return (await box.run("seq 3 | wc -l")).stdout

    assert support.run(count()) == b"3\n"


def test_a_ca_bundle_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no CA bundle"):
        open_sandbox(ca_bundle=tmp_path / "none.pem")


@isolated
def test_certificates_that_have_vanished_are_named(isolation: str, tmp_path: Path) -> None:
    """The engine is not blamed."""
    with pytest.raises(SandboxError, match=r"cannot start .*vanished\.pem"):
        support.run(start_sandbox(SandboxOptions(isolation, ca_bundle=tmp_path / "vanished.pem")))


@pytest.mark.isolations("process", "bubblewrap")
def test_it_can_be_awaited_and_used_as_a_context_and_closed_twice(isolation: str) -> None:
    async def both() -> list[str]:
        found = []
        box = await open_sandbox(isolation)
        found.append((await box.run("echo awaited")).text)
        await box.close()
        await box.close()
        with pytest.raises(SandboxLostError):
            await box.run("true")
        async with open_sandbox(isolation) as box:
            found.append((await box.run("echo entered")).text)
        return found

    assert support.run(both()) == ["awaited\n", "entered\n"]


def test_options_reach_the_inside(isolation: str, tmp_path: Path) -> None:
    bundle = tmp_path / "site.pem"
    bundle.write_bytes(b"# Z\xfcrich\n-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    command = 'cat "$REQUESTS_CA_BUNDLE"; echo $PIP_INDEX_URL $https_proxy $no_proxy $EXTRA'

    async def look() -> str:
        async with open_sandbox(
            isolation,
            ca_bundle=bundle,
            index_url="https://packages.example/simple",
            proxy="http://proxy.example:3128",
            env={"EXTRA": "a b"},
        ) as box:
            return (await box.run(command)).text

    text = support.run(look())
    assert "BEGIN CERTIFICATE" in text
    expected = "https://packages.example/simple http://proxy.example:3128 localhost,127.0.0.1,::1 a b"
    assert text.endswith(f"{expected}\n")


@pytest.mark.isolations("process", "bubblewrap")
def test_a_variable_need_not_be_utf_8(isolation: str) -> None:
    async def look() -> bytes:
        async with open_sandbox(isolation, env={"EXTRA": os.fsdecode(b"caf\xe9")}) as box:
            return (await box.run('printf %s "$EXTRA"')).stdout

    assert support.run(look()) == b"caf\xe9"


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("bubblewrap_engine")
def test_limits_are_read_back() -> None:
    limits = Limits(memory_bytes=512 * 1024**2, pids=100, cpus=0.5)

    async def look() -> Limits:
        async with open_sandbox("bubblewrap", limits=limits) as box:
            told = box.protection
            return Limits(told.memory_bytes, told.pids, told.cpus)

    told = support.run(look())
    if os.getuid() == 0:
        assert told == limits
    else:
        assert told.pids == limits.pids


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("bubblewrap_engine")
@pytest.mark.parametrize(
    "root", ["relative", "/", "/usr/work", "/etc", "/testbed/../usr", "//usr/x", "/var/tmp/x"]
)
def test_the_working_directory_cannot_hide_the_system(root: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        support.run(open_and_close("bubblewrap", directories=Directories(root)))


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("bubblewrap_engine")
@pytest.mark.parametrize("root", ["/work here", "/tmp/deep/er", "/home/sandbox/work"])
def test_another_working_directory(root: str) -> None:
    async def look() -> str:
        async with open_sandbox("bubblewrap", profile="strict", directories=Directories(root)) as box:
            return (await box.run("pwd; touch x; ls")).text

    assert support.run(look()).splitlines() == [root, "documents", "input", "output", "x"]


async def open_and_close(isolation: str, **options: object) -> str:
    async with open_sandbox(isolation, **options) as box:  # type: ignore[arg-type]
        return box.protection.isolation


# ------------------------------------------------------------------------------ auto


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("bubblewrap_engine")
def test_auto_takes_bubblewrap_without_an_engine_and_says_what_it_is_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")

    async def look() -> list[str]:
        async with open_sandbox() as box:
            told = box.protection
            return [told.isolation, told.protects, told.does_not_protect]

    isolation, protects, gaps = support.run(look())
    assert isolation == "bubblewrap"
    assert "cannot reach this machine's files" in protects
    assert "kernel is shared" in gaps


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
def test_auto_takes_docker_where_it_works() -> None:
    assert support.run(open_and_close("auto")) == "docker"


def test_auto_never_takes_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("llm_sandbox_nb.sandbox.bubblewrap.sandbox._has_worked", False)
    with pytest.raises(IsolationUnavailableError) as caught:
        support.run(open_and_close("auto"))
    said = str(caught.value)
    assert "No Docker engine answers at unix:///nowhere/docker.sock" in said
    assert "bubblewrap is not installed (`apt install bubblewrap`)" in said
    assert "'process', which protects nothing" in said
    assert "\n" not in said


def test_an_image_needs_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(IsolationUnavailableError, match=r"The image 'debian' needs Docker\. No"):
        support.run(open_and_close("auto", image="debian"))


def test_no_bubblewrap_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(IsolationUnavailableError, match="bubblewrap is not installed: install it"):
        support.run(open_and_close("bubblewrap"))


@pytest.mark.bubblewrap
@pytest.mark.usefixtures("bubblewrap_engine")
def test_forbidden_user_namespaces_are_said_and_how_to_allow_them() -> None:
    """In a user namespace that forbids further ones, as an administrator may on a whole machine."""
    program = (
        "import asyncio, sys\n"
        "sys.path[:0] = sys.argv[1:]\n"
        "from llm_sandbox_nb.sandbox.open import load_isolation\n"
        "print(asyncio.run(load_isolation('bubblewrap').why_unavailable(None)))\n"
    )
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        forbid,
        "sh",
        sys.executable,
        "-c",
        program,
    ]
    done = subprocess.run([*command, *filter(None, sys.path)], capture_output=True, text=True, check=False)
    assert "user namespaces are switched off; root allows them with `sysctl -w user.max" in done.stdout, done
    assert done.stdout.count("\n") == 1
