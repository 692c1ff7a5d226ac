"""What the model can do to the machine from inside a container. Each attack has a canary that would fire."""

from __future__ import annotations

import os
import secrets
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_help import docker_box

from llm_sandbox_nb.sandbox.docker.engine import connect
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.sandbox.docker.settings import MAX_FILE_BYTES, STANDARD_CAPABILITIES
from llm_sandbox_nb.sandbox.limits import Limits

pytestmark = pytest.mark.isolations("docker")
PROFILES = pytest.mark.parametrize(
    "profile",
    [pytest.param(name, marks=pytest.mark.sandbox(profile=name)) for name in ("standard", "strict")],
)
ENGINE = pytest.mark.usefixtures("docker_engine")
"""Mark of a test that opens its sandboxes itself."""
MEGABYTE = 1024**2


@pytest.mark.sandbox(limits=Limits(300 * MEGABYTE, 99, 0.5))
async def test_protection_in_force_standard(box: Any) -> None:
    found = box.protection
    assert (found.isolation, found.profile, found.user) == ("docker", "standard", "root")
    assert found.capabilities == tuple(f"CAP_{name}" for name in STANDARD_CAPABILITIES)
    assert (found.memory_bytes, found.pids, found.cpus) == (300 * MEGABYTE, 99, 0.5)
    assert found.no_new_privileges
    assert found.seccomp == "filter"
    assert found.network == "public"


@pytest.mark.sandbox(profile="strict", limits=Limits(None, None, None))
async def test_protection_in_force_strict(box: Any) -> None:
    found = box.protection
    assert (found.profile, found.user, found.capabilities) == ("strict", "uid 1000", ())
    assert (found.memory_bytes, found.pids, found.cpus) == (None, None, None)
    assert "not limited: memory, processes, processors." in found.does_not_protect
    assert found.no_new_privileges
    assert found.seccomp == "filter"
    assert found.network == "none"


@PROFILES
async def test_files_and_sockets_of_the_host_cannot_be_seen(box: Any, profile: str, tmp_path: Path) -> None:
    name = f"canary-{secrets.token_hex(6)}"
    (tmp_path / name).write_text("secret")
    home = Path.home() / f".{name}"
    home.write_text("secret")
    assert Path("/var/run/docker.sock").is_socket() or os.environ.get("DOCKER_HOST")
    try:
        await box.run(
            f"touch control-{name}; python3 -c 'import socket; socket.socket(1).bind(\"control-socket\")'"
        )
        searched = f"find / -path /proc -prune -o '(' -name '*{name}' -o -type s ')' -print"
        found = (await box.run(searched)).stdout.decode().split()
        assert sorted(found) == [f"/testbed/control-{name}", "/testbed/control-socket"]
        mounts = await box.exec(["cat", "/proc/self/mountinfo"])
        sources = {line.split()[3] for line in mounts.stdout.decode().splitlines()}
        assert not any(str(tmp_path) in source or source.startswith("/root") for source in sources)
    finally:
        home.unlink()


PYTHON = "import ctypes, os, socket, sys; call = ctypes.CDLL(None).syscall; "
ATTACKS = {
    "mount": "mount -t tmpfs none /mnt",
    "bind mount": "mkdir -p /tmp/m && mount --bind /proc /tmp/m",
    "block device": "mknod /tmp/disk b 254 0 || mknod /testbed/disk b 8 0",
    "character device": "mknod /tmp/memory c 1 1",
    "raw socket": f"python3 -c '{PYTHON} socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "packet socket": f"python3 -c '{PYTHON} socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "host name": "hostname canary",
    "clock": "date -s 2001-01-01",
    "chroot": "chroot / true",
    "user namespace": "unshare --user --map-root-user true",
    "mount namespace": "unshare --mount true",
    "namespaces of process 1": "nsenter --target 1 --mount true",
    "kernel settings": "echo '|/bin/true' > /proc/sys/kernel/core_pattern",
    "system request": "echo h > /proc/sysrq-trigger",
    "control groups": "echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
    "unified control groups": "cd /sys/fs/cgroup; [ -e memory.max ] && echo max > memory.max",
    "kernel modules": f"python3 -c '{PYTHON} sys.exit(call(175, 0, 0, 0) == -1)'",
    "kernel log": "dmesg",
    "kernel keys": f"python3 -c '{PYTHON} sys.exit(call(250, 0, -3, 1) == -1)'",
    "bpf": f"python3 -c '{PYTHON} sys.exit(call(321, 0, 0, 0) == -1)'",
    "memory of process 1": "head -c1 /proc/1/mem || head -c1 /proc/1/environ",
    "pipe of process 1": "echo x > /proc/1/fd/1",
    "tracing process 1": f"python3 -c '{PYTHON} sys.exit(call(101, 16, 1, 0, 0) == -1)'",
    "scheduling": f"python3 -c '{PYTHON} os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))'",
    "priority": f"python3 -c '{PYTHON} os.setpriority(os.PRIO_PROCESS, 0, -20)'",
    "more open files": "bash -c 'ulimit -n 1000000'",
}


@PROFILES
async def test_what_only_the_host_may_do_fails(box: Any, profile: str) -> None:
    host_name = socket.gethostname()
    codes = {name: (await box.run(command, timeout=20)).exit_code for name, command in ATTACKS.items()}
    assert (await box.run("hostname; echo alive")).stdout.endswith(b"sandbox\nalive\n")
    assert [name for name, code in codes.items() if code == 0] == []
    assert socket.gethostname() == host_name


@ENGINE
def test_the_attacks_work_without_protection() -> None:
    """With the rights that we drop, the same commands do their work; so the test above means something."""
    container = connect().containers.run(
        DEFAULT_IMAGE,
        ["sleep", "infinity"],
        cap_add=["SYS_ADMIN", "MKNOD", "NET_RAW", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE"],
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        network_mode="none",
        detach=True,
    )
    working = (
        "mount",
        "character device",
        "raw socket",
        "packet socket",
        "host name",
        "chroot",
        "user namespace",
    )
    working += ("mount namespace", "priority", "namespaces of process 1", "memory of process 1")
    try:
        for name in working:
            assert container.exec_run(["bash", "-c", ATTACKS[name]]).exit_code == 0, name
    finally:
        container.remove(force=True)


@PROFILES
async def test_setuid_programs_give_no_rights(box: Any, profile: str) -> None:
    program = textwrap.dedent("""
        import os, subprocess, sys
        open("/tmp/copy", "wb").write(open("/usr/bin/id", "rb").read())
        os.chmod("/tmp/copy", 0o6755)
        if os.getuid() == 0:
            os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000)
            print(subprocess.run(["/tmp/copy"], capture_output=True, text=True).stdout)
        print(subprocess.run(["/usr/bin/su", "-c", "id"], input="\\n", capture_output=True, text=True).stdout)
    """)
    result = await box.exec(["python3", "-c", program])
    assert result.exit_code == 0, result.stderr
    assert b"uid=1000" in result.stdout or profile == "strict"
    assert b"euid=0" not in result.stdout
    assert b"uid=0" not in result.stdout


@pytest.mark.sandbox(profile="strict")
async def test_strict_cannot_change_the_system(box: Any) -> None:
    result = await box.run(
        "touch /usr/bin/canary /etc/canary /canary; ls -d /usr/bin/canary /etc/canary /canary"
    )
    assert result.stdout == b""
    assert (await box.run("touch /testbed/mine ~/mine /tmp/mine && echo $HOME")).stdout == b"/home/user\n"


SERVE = """
nohup python3 -m http.server 8000 >/dev/null 2>&1 &
for i in $(seq 50); do curl -s 127.0.0.1:8000 && break; sleep .1; done
"""


def address(container: str) -> str:
    networks = connect().api.inspect_container(container)["NetworkSettings"]["Networks"]
    return str(next(iter(networks.values()))["IPAddress"])


@pytest.mark.sandbox(profile="standard")
async def test_sandboxes_cannot_reach_each_other(box: Any) -> None:
    await box.write_file("canary", b"served")
    await box.run(SERVE)
    where = address(box.protection.details["container"])
    fetch = f"curl -sS --max-time 3 http://{where}:8000/canary"
    assert (await box.run(fetch)).stdout == b"served"
    async with docker_box() as other, docker_box(profile="strict") as strict:
        reached = await other.run(fetch)
        assert reached.exit_code != 0
        assert reached.stdout == b""
        assert (await strict.run(fetch)).stdout == b""
        names = await strict.run("cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '")
        assert names.stdout == b"lo\n", "strict has no network at all"


@ENGINE
def test_containers_of_others_do_reach_each_other() -> None:
    """On the engine's own bridge the same request arrives, so the test above means something."""
    client = connect()
    settings = {"detach": True, "network_mode": "bridge"}
    server = client.containers.run(DEFAULT_IMAGE, ["python3", "-m", "http.server", "8000"], **settings)
    other = client.containers.run(DEFAULT_IMAGE, ["sleep", "infinity"], **settings)
    try:
        fetch = [
            "curl",
            "-sS",
            "--retry",
            "20",
            "--retry-connrefused",
            "--retry-delay",
            "1",
            "--max-time",
            "20",
        ]
        assert other.exec_run([*fetch, f"http://{address(server.id)}:8000/"]).exit_code == 0
    finally:
        server.remove(force=True)
        other.remove(force=True)


@pytest.fixture
def loopback_canary() -> Iterator[int]:
    """A server on the host's loopback only; it tells when somebody came."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server.getsockname()[1]
        with pytest.raises(TimeoutError):
            server.accept()


@PROFILES
async def test_host_loopback_cannot_be_reached(box: Any, profile: str, loopback_canary: int) -> None:
    program = textwrap.dedent("""
        import socket, struct, sys
        gateways = [socket.inet_ntoa(struct.pack("<I", int(line.split()[2], 16)))
                    for line in open("/proc/net/route").readlines()[1:]]
        for host in {"127.0.0.1", *gateways} - {"0.0.0.0"}:
            try:
                socket.create_connection((host, int(sys.argv[1])), timeout=2)
            except OSError:
                continue
            print("reached", host)
    """)
    result = await box.exec(["python3", "-c", program, str(loopback_canary)])
    assert result.exit_code == 0
    assert result.stdout == b""


@PROFILES
async def test_one_endless_file_is_stopped(box: Any, profile: str) -> None:
    result = await box.run("truncate -s 40G endless || stat -c %s endless")
    assert int(result.stdout) <= MAX_FILE_BYTES


@pytest.mark.own_sandbox
@pytest.mark.sandbox(network="none")
async def test_root_can_install_packages_and_own_files(box: Any) -> None:
    """What dpkg does: files of other owners, set-group-id, scripts that make users."""
    script = textwrap.dedent("""
        set -e
        mkdir -p package/DEBIAN package/usr/local/bin package/var/lib/canary
        printf 'Package: canary\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@b>\\nDescription: c\\n' \
            > package/DEBIAN/control
        printf '#!/bin/sh\\nset -e\\nuseradd --system canary\\nchown canary:games /var/lib/canary\\n' \
            > package/DEBIAN/postinst
        printf '#!/bin/sh\\necho canary\\n' > package/usr/local/bin/canary
        chmod 755 package/DEBIAN/postinst; chmod 2755 package/usr/local/bin/canary
        chgrp games package/usr/local/bin/canary; chmod g+s package/usr/local/bin/canary
        dpkg-deb --build package canary.deb
        dpkg -i canary.deb
        canary
        stat -c '%U:%G %a' /var/lib/canary /usr/local/bin/canary
    """)
    result = await box.run(script, timeout=60)
    assert result.exit_code == 0, result.text
    assert result.stdout.endswith(b"canary\ncanary:games 755\nroot:games 2755\n")


@PROFILES
async def test_pip_installs_what_it_is_given(box: Any, profile: str) -> None:
    program = textwrap.dedent("""
        import base64, hashlib, zipfile
        with zipfile.ZipFile("/tmp/canary-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("canary.py", "VALUE = 42")
            about = "canary-1.0.dist-info"
            wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: canary\\nVersion: 1.0\\n")
            lines = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
            wheel.writestr(f"{about}/WHEEL", lines)
            wheel.writestr(f"{about}/RECORD", "")
    """)
    await box.exec(["python3", "-c", program])
    result = await box.run(
        "pip install --no-index /tmp/canary-*.whl && python3 -c 'import canary; print(canary.VALUE)'"
    )
    assert result.stdout.endswith(b"42\n"), result.text


@pytest.mark.sandbox(profile="strict")
async def test_a_virtual_environment_can_be_made(box: Any) -> None:
    environment = await box.run("python3 -m venv v && . v/bin/activate && pip --version && which python")
    assert environment.stdout.endswith(b"/testbed/v/bin/python\n"), environment.text


@pytest.mark.campaign
@pytest.mark.sandbox(profile="standard")
async def test_root_can_make_a_virtual_environment(box: Any) -> None:
    await test_a_virtual_environment_can_be_made(box)
