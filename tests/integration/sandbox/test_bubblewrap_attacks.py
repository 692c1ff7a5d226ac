"""What is tried to get out of a bubblewrap sandbox. Each probe first shows, unisolated, that it works."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support

from llm_sandbox_nb import open_sandbox
from llm_sandbox_nb.sandbox.bubblewrap import sandbox as bubblewrap
from llm_sandbox_nb.sandbox.bubblewrap.view import running_python
from llm_sandbox_nb.sandbox.contract import CommandResult
from llm_sandbox_nb.sandbox.limits import Limits

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
PROFILES = ("standard", "strict")
profiles = pytest.mark.parametrize("profile", PROFILES)
MB = 1024**2


async def try_in(isolation: str, script: str, **options: Any) -> CommandResult:
    async with open_sandbox(isolation, **options) as box:
        return await box.exec(["python3", "-c", textwrap.dedent(script)], timeout=30)


def outside(script: str) -> str:
    """What the probe prints without any isolation."""
    return support.run(try_in("process", script)).stdout.decode()


def inside(script: str, profile: str, **options: Any) -> str:
    result = support.run(try_in("bubblewrap", script, profile=profile, **options))
    assert not result.timed_out
    return result.text


@pytest.fixture
def secret() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def home_file(secret: str) -> Iterator[Path]:
    path = Path.home() / f".llm-sandbox-canary-{secret[:8]}"
    path.write_text(secret)
    yield path
    path.unlink()


# ------------------------------------------------------------------------------ files


@profiles
def test_keys_of_a_package_index_are_not_read(
    profile: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip config --site` and `conda config --env` store them in the folder of the environment, which is shown."""
    tmp_path.chmod(0o755)
    own = running_python()
    monkeypatch.setattr(
        bubblewrap, "running_python", lambda: replace(own, folders=(*own.folders, str(tmp_path)))
    )
    (tmp_path / "shown").write_text(secret)
    for name in ("pip.conf", ".condarc"):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o644)
    probe = (
        f"print(*(open({str(tmp_path)!r} + '/' + name).read() for name in ('shown', 'pip.conf', '.condarc')))"
    )
    assert outside(probe).split() == [secret] * 3
    assert inside(probe, profile).split() == [secret]


@profiles
def test_files_of_the_host_are_not_there(profile: str, secret: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(secret)
    probe = f"print(open({str(tmp_path / 'file')!r}).read())"
    assert secret in outside(probe)
    assert "FileNotFoundError" in inside(probe, profile)


@profiles
def test_the_home_folder_is_not_there(profile: str, secret: str, home_file: Path) -> None:
    probe = f"print(open({str(home_file)!r}).read())"
    assert secret in outside(probe)
    assert secret not in inside(probe, profile)


@profiles
def test_links_lead_nowhere(profile: str, secret: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(secret)

    async def through_links(isolation: str, **options: Any) -> list[bytes]:
        found = []
        async with open_sandbox(isolation, **options) as box:
            for target in (
                tmp_path / "file",
                f"/proc/1/root{tmp_path}/file",
                f"/proc/self/cwd/../..{tmp_path}/file",
            ):
                await box.exec(["ln", "-sfn", str(target), "link"])
                try:
                    found.append(await box.read_file("link"))
                except OSError as error:
                    found.append(type(error).__name__.encode())
        return found

    assert secret.encode() in support.run(through_links("process"))
    assert secret.encode() not in b"".join(support.run(through_links("bubblewrap", profile=profile)))


@profiles
def test_what_is_shown_of_the_host_cannot_be_written(profile: str, secret: str) -> None:
    shown = Path(sys.prefix) / f"llm-sandbox-canary-{secret[:8]}"
    shown.mkdir()
    file = shown / "file"
    file.write_text(secret)
    probe = f"print(open({str(file)!r}).read()); open({str(file)!r}, 'a').write('changed')"
    try:
        file.chmod(0o666)
        result = inside(probe, profile)
        assert secret in result
        assert "Read-only file system" in result
        assert file.read_text() == secret
        assert secret in outside(probe)
        assert file.read_text() == f"{secret}changed"
    finally:
        file.unlink()
        shown.rmdir()


@profiles
def test_the_system_cannot_be_written(profile: str) -> None:
    probe = """
        import os
        for folder in ("/", "/usr", "/usr/bin", "/bin", "/lib", "/etc/ssl/certs", "/dev", "/proc", "/work"):
            try:
                os.close(os.open(f"{folder}/llm-sandbox-canary", os.O_CREAT | os.O_WRONLY))
                print("written", folder)
            except OSError:
                pass
        for folder in ("/tmp", "/testbed", os.path.expanduser("~")):
            open(f"{folder}/file", "w").close()
            print("possible", folder)
        """
    result = inside(probe, profile)
    assert "written" not in result
    assert result.count("possible") == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root's files are at stake")
@profiles
def test_settings_of_the_kernel_cannot_be_written(profile: str) -> None:
    """The plain way to use bubblewrap as root leaves them open: there, root inside is root of the host."""
    setting = "/proc/sys/kernel/core_uses_pid"
    value = Path(setting).read_text().strip()
    probe = f"open({setting!r}, 'w').write({value!r}); print('written')"
    plain = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "0",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
    ]
    naive = subprocess.run([*plain, sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert "written" in naive.stdout
    assert "written" in outside(probe)
    assert "PermissionError" in inside(probe, profile)


@profiles
def test_no_devices(profile: str) -> None:
    probe = """
        import os, stat
        print(sorted(os.listdir("/dev")))
        for kind, device in ((stat.S_IFBLK, (254, 0)), (stat.S_IFCHR, (1, 1))):
            try:
                os.mknod("/tmp/device", kind | 0o600, os.makedev(*device))
                print("made")
            except OSError:
                pass
        """
    result = inside(probe, profile)
    names = (
        "['core', 'fd', 'full', 'mqueue', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', "
        "'tty',"
    )
    assert names in result
    assert "made" not in result


# ------------------------------------------------------------------------------ processes


@profiles
def test_no_namespaces_below(profile: str) -> None:
    probe = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for flag in (0x10000000, 0x00020000, 0x40000000):
            if os.fork() == 0:
                print("made" if libc.unshare(flag | 0x10000000) == 0 else "refused", flush=True)
                os._exit(0)
            os.wait()
        """
    assert "made" in outside(probe)
    assert "made" not in inside(probe, profile)


@profiles
def test_nothing_is_typed_into_terminals(profile: str) -> None:
    probe = """
        import fcntl, os, termios
        main, side = os.openpty()
        if os.fork() == 0:
            os.setsid()
            fcntl.ioctl(side, termios.TIOCSCTTY, 0)
            try:
                fcntl.ioctl(side, termios.TIOCSTI, b"x")
                print("typed", flush=True)
            except OSError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        try:
            os.open("/dev/tty", os.O_RDWR)
            print("terminal")
        except OSError:
            pass
        """
    if os.getuid() == 0:
        assert "typed" in outside(probe)
    result = inside(probe, profile)
    assert "Operation not permitted" in result
    assert "typed" not in result
    assert "terminal" not in result


# ------------------------------------------------------------------------------ network


def answer_once(server: socket.socket) -> None:
    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.sendall(b"reached")
            connection.close()

    threading.Thread(target=serve, daemon=True).start()


@pytest.fixture
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, address = request.param
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)  # Linux gives an abstract name that nobody else has in place of an empty one
        server.listen()
        answer_once(server)
        yield server
        server.shutdown(socket.SHUT_RDWR)


PLACES = [
    pytest.param((socket.AF_INET, ("127.0.0.1", 0)), id="loopback"),
    pytest.param((socket.AF_INET6, ("::1", 0)), id="loopback-6"),
    pytest.param((socket.AF_UNIX, ""), id="abstract"),
]


def connecting(server: socket.socket) -> str:
    name = server.getsockname()
    name = name.decode() if isinstance(name, bytes) else name
    return f"""
        import socket
        with socket.socket(socket.AddressFamily({int(server.family)})) as client:
            client.settimeout(5)
            client.connect({name!r})
            print(client.recv(100))
        """


@profiles
@pytest.mark.parametrize("listening", PLACES, indirect=True)
def test_servers_of_the_host_are_not_reached(profile: str, listening: socket.socket) -> None:
    probe = connecting(listening)
    assert "reached" in outside(probe)
    assert "reached" not in inside(probe, profile)


@pytest.mark.parametrize("listening", PLACES[:1], indirect=True)
def test_an_open_network_is_the_hosts_own_and_said_to_be(listening: socket.socket) -> None:
    async def look() -> tuple[str, str, str]:
        async with open_sandbox("bubblewrap", network="open") as box:
            result = await box.exec(["python3", "-c", textwrap.dedent(connecting(listening))])
            return result.text, box.protection.network, box.protection.does_not_protect

    text, network, gaps = support.run(look())
    assert "reached" in text
    assert network == "open"
    assert "localhost" in gaps


# ------------------------------------------------------------------------------ environment


def test_given_variables_do_not_show_in_lists_of_processes(secret: str) -> None:
    async def look() -> str:
        async with open_sandbox("bubblewrap", env={"TOKEN": secret}) as box:
            assert secret in (await box.run("echo $TOKEN")).text
            lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
            return b"\n".join(lines).decode("utf-8", "replace")

    assert secret not in support.run(look())


# ------------------------------------------------------------------------------ limits


def test_files_in_memory_are_limited() -> None:
    folders = "/testbed /tmp /var/tmp /dev/shm /run /home /home/sandbox /root /etc"
    fill = f"for folder in {folders}; do head -c 150M /dev/zero > $folder/big && echo filled; done"

    async def filled() -> tuple[str, str]:
        async with open_sandbox("bubblewrap", limits=Limits(memory_bytes=100 * MB)) as box:
            text = (await box.run(fill, timeout=60)).text
            return text, (await box.run("echo alive")).text

    text, after = support.run(filled())
    assert "filled" not in text
    assert text.count("No space left on device") == 9
    assert after == "alive\n"


@profiles
def test_no_command_has_the_socket_of_packs(profile: str) -> None:
    """The executor's socket to this process passes descriptors: commands neither inherit it nor reach it in /proc."""
    probe = """
        import os
        held = []
        for pid in ["self", *filter(str.isdigit, os.listdir("/proc"))]:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for name in names:
                try:
                    held.append(os.readlink(f"/proc/{pid}/fd/{name}"))
                except OSError:
                    pass
        print(len(held) > 2, [one for one in held if one.startswith("socket:")])
    """
    shell = f"python3 -c '{textwrap.dedent(probe)}'"

    async def body() -> list[str]:
        async with open_sandbox("bubblewrap", profile=profile) as box:
            await box.checkpoint()  # starts the child that has the socket too
            in_shell = await box.run(shell)
            return [in_shell.text, (await box.exec(["python3", "-c", textwrap.dedent(probe)])).text]

    assert support.run(body()) == ["True []\n", "True []\n"]
