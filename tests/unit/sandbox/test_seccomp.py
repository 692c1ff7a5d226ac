"""The assembled filter, run by a small interpreter of BPF, and its tables against the kernel's headers."""

from __future__ import annotations

import ast
import errno
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.sandbox import seccomp

ALLOW = 0x7FFF0000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
machines = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def decide(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    program = seccomp.filter_program(machine)
    assert program is not None
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<II", number, audit or AUDIT[machine]) + b"\0" * 8 + struct.pack("<6Q", *words)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", program, position * 8)
        position += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
            continue
        passed = {
            0x15: accumulator == operand,
            0x35: accumulator >= operand,
            0x45: accumulator & operand != 0,
        }
        position += if_true if passed[code] else if_false


def refused(code: int) -> int:
    return 0x00050000 | code


@machines
def test_each_denied_call_is_refused_and_each_absent_one_is_unknown(machine: str) -> None:
    for table, code in ((seccomp.DENIED, errno.EPERM), (seccomp.ABSENT, errno.ENOSYS)):
        for name, numbers in table.items():
            number = numbers[COLUMN[machine]]
            if number >= 0:
                assert decide(machine, number) == refused(code), name


@machines
@given(number=st.integers(0, 600))
def test_everything_else_is_let_through(machine: str, number: int) -> None:
    tables = {**seccomp.DENIED, **seccomp.ABSENT, **seccomp._CHECKED}
    if number not in {numbers[COLUMN[machine]] for numbers in tables.values()}:
        assert decide(machine, number, 2**64 - 1, 2**64 - 1) == ALLOW


@machines
def test_threads_and_children_can_be_made_and_no_new_namespaces(machine: str) -> None:
    clone, unshare = (seccomp._CHECKED[name][COLUMN[machine]] for name in ("clone", "unshare"))
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, clone, flag | 17) == refused(errno.EPERM)
        assert decide(machine, unshare, flag) == refused(errno.EPERM)
    thread, child, files = 0x3D0F00, 0x01200011, 0x400
    assert decide(machine, clone, thread) == ALLOW
    assert decide(machine, clone, child) == ALLOW
    assert decide(machine, unshare, files) == ALLOW


@machines
def test_terminal_injection_is_refused_whatever_the_upper_half_of_the_request_is(machine: str) -> None:
    ioctl = seccomp._CHECKED["ioctl"][COLUMN[machine]]
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x541C | 0xFFFF << 48):
        assert decide(machine, ioctl, 0, request) == refused(errno.EPERM)
    assert decide(machine, ioctl, 0, 0x5413) == ALLOW


@machines
@given(family=st.integers(0, 60))
def test_only_usual_socket_families(machine: str, family: int) -> None:
    expected = ALLOW if family in (1, 2, 10, 16) else refused(errno.EAFNOSUPPORT)
    for name in ("socket", "socketpair"):
        assert decide(machine, seccomp._CHECKED[name][COLUMN[machine]], family) == expected


@machines
def test_other_call_conventions_find_nothing(machine: str) -> None:
    i386 = 0x40000003
    assert decide(machine, 1, audit=i386) == refused(errno.ENOSYS)
    assert decide("x86_64", 0x40000000 | 1) == refused(errno.ENOSYS)


@machines
def test_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers (linux-libc-dev) are not installed")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text()))
    for name, numbers in {**seccomp.DENIED, **seccomp.ABSENT, **seccomp._CHECKED}.items():
        if name in found:
            assert numbers[COLUMN[machine]] == int(found[name]), name
    assert len(found) > 300


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp.filter_program("riscv64") is None


LOAD = """
{program}
import sys; sys.path.insert(0, sys.argv[1])
from executor.main import open_calls
print(open_calls())
"""


def calls_after(program: str) -> str:
    """What the executor's probe finds in a process that has run `program`."""
    folder = str(Path(seccomp.__file__).parent)
    argv = [sys.executable, "-I", "-c", LOAD.format(program=program), folder]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_what_is_loaded_is_in_force_and_found_to_be() -> None:
    assert "True" in calls_after("")
    assert ast.literal_eval(calls_after(seccomp.load_filter())) == dict.fromkeys(
        ("io_uring", "kernel keys", "vsock"), False
    )


def test_a_filter_that_would_stop_everything_is_not_loaded() -> None:
    """As where an emulator translates system calls: the program goes on, and what is open is said."""
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    wrong = {platform.machine(): (seccomp.filter_program(other) or b"").hex()}
    found = ast.literal_eval(calls_after(f"{seccomp._LOAD}\nload_filter({wrong!r})"))
    assert seccomp.describe_calls(found)[1]
    assert seccomp.describe_calls({"vsock": True, "io_uring": False, "kernel keys": False}) == (
        "refused: io_uring, kernel keys; open: vsock",
        ["vsock"],
    )
