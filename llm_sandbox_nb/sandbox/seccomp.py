"""The system-call filter (seccomp) of every Docker and bubblewrap sandbox, assembled without a library.

The filter denies system calls that programs have used to escape from sandboxes and that no sandbox needs. They concern
kernel keyrings, BPF, perf, userfaultfd, mounts, new namespaces, io_uring, kernel modules, and typing into other
terminals. The filter also denies sockets of families other than Unix, IP and netlink, because a vsock reaches the
hypervisor from any network namespace. All other calls are allowed.

A filter is a program in BPF, the kernel's bytecode for filters. bubblewrap reads it from a file descriptor. In a
container, the first process installs it before it serves requests. The filter of a Docker engine is not enough,
because engines differ in the calls that they allow, in the names that they know, and in the format of a filter.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_sandbox_nb.sandbox.protocol.answers import closed_and_open

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_OR_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_NUMBER_OFFSET = 0
_ARCHITECTURE_OFFSET = 4
_X32_BIT = 0x40000000
_MISSING = -1

_NEW_NAMESPACE_FLAGS = 0x7E020080
"""All CLONE_NEW* flags."""
_CLONE_NAMESPACE_FLAGS = 0x7E020000
"""All CLONE_NEW* flags except CLONE_NEWTIME (0x80). In the flags of clone, the bit 0x80 belongs to the exit signal."""
_TERMINAL_INJECTION = (0x5412, 0x541C)
"""The ioctl requests TIOCSTI and TIOCLINUX, with which a program can type into another program's terminal."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""The allowed socket families AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK."""

DENIED: dict[str, tuple[int, int]] = {
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, _MISSING),
    "ioperm": (173, _MISSING),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "chroot": (161, 51),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
"""System calls that fail with EPERM, each with its numbers on x86-64 and arm64. -1 means that arm64 lacks the call."""

ABSENT: dict[str, tuple[int, int]] = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
"""System calls that fail with ENOSYS (no such call), so that programs use other calls. A filter cannot check clone3,
because the flags of clone3 are behind a pointer. Without clone3, glibc uses clone, whose flags the filter checks."""

_CHECKED: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
}


@dataclass(frozen=True)
class Architecture:
    """A processor architecture for which a filter can be assembled."""

    audit: int
    """The kernel's number for this architecture (AUDIT_ARCH)."""
    column: int
    """Position of the architecture's system-call numbers in the pairs of `DENIED`, `ABSENT` and `_CHECKED`."""


_ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0),
    "amd64": Architecture(0xC000003E, 0),
    "aarch64": Architecture(0xC00000B7, 1),
    "arm64": Architecture(0xC00000B7, 1),
}


@dataclass
class _Program:
    instructions: list[tuple[int, int, int, int]] = field(default_factory=list)

    def load(self, offset: int) -> None:
        self.instructions.append((_LOAD_WORD, 0, 0, offset))

    def answer(self, action: int) -> None:
        self.instructions.append((_RETURN, 0, 0, action))

    def answer_if(self, test: int, operand: int, action: int) -> None:
        """Add instructions that return `action` if the loaded word passes `test` with `operand`; otherwise continue."""
        self.instructions.append((test, 0, 1, operand))
        self.answer(action)

    def to_bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self.instructions)


def _fail(code: int) -> int:
    return _ERRNO | code


def _argument_check(argument: int, tests: list[tuple[int, int, int]], otherwise: int) -> _Program:
    """Assemble a program that checks one argument of a call. `argument` is its position, from 0.

    Each of `tests` is (test, operand, action). The program returns the action of the first test that the argument
    passes. If the argument passes no test, the program returns `otherwise`.
    """
    program = _Program()
    program.load(16 + 8 * argument)  # the argument's low word, because both architectures are little-endian
    for test, operand, action in tests:
        program.answer_if(test, operand, action)
    program.answer(otherwise)
    return program


def _checks(column: int) -> list[tuple[int, _Program]]:
    refused = _fail(errno.EPERM)
    clone = _argument_check(0, [(_JUMP_ANY_BIT, _CLONE_NAMESPACE_FLAGS, refused)], _ALLOW)
    unshare = _argument_check(0, [(_JUMP_ANY_BIT, _NEW_NAMESPACE_FLAGS, refused)], _ALLOW)
    ioctl = _argument_check(1, [(_JUMP_EQUAL, request, refused) for request in _TERMINAL_INJECTION], _ALLOW)
    families = [(_JUMP_EQUAL, family, _ALLOW) for family in _SOCKET_FAMILIES]
    socket = _argument_check(0, families, _fail(errno.EAFNOSUPPORT))
    by_name = {"clone": clone, "unshare": unshare, "ioctl": ioctl, "socket": socket, "socketpair": socket}
    return [(_CHECKED[name][column], program) for name, program in by_name.items()]


def filter_program(machine: str | None = None) -> bytes | None:
    """Return the compiled filter for the architecture `machine`, e.g. `x86_64`; for this machine's if None.

    The result is None if this module has no system-call numbers for the architecture.
    """
    architecture = _ARCHITECTURES.get((machine or platform.machine()).lower())
    if architecture is None:
        return None
    program = _Program()
    program.load(_ARCHITECTURE_OFFSET)
    program.instructions.append((_JUMP_EQUAL, 1, 0, architecture.audit))
    program.answer(_fail(errno.ENOSYS))
    program.load(_NUMBER_OFFSET)
    program.answer_if(_JUMP_GREATER_OR_EQUAL, _X32_BIT, _fail(errno.ENOSYS))
    for table, code in ((DENIED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in table.values():
            if numbers[architecture.column] != _MISSING:
                program.answer_if(_JUMP_EQUAL, numbers[architecture.column], _fail(code))
    for number, check in _checks(architecture.column):
        program.instructions.append((_JUMP_EQUAL, 0, len(check.instructions), number))
        program.instructions += check.instructions
    program.answer(_ALLOW)
    return program.to_bytes()


_LOAD = """
import ctypes, os, struct
def load_filter(filters):
    class Program(ctypes.Structure):
        _fields_ = [('length', ctypes.c_ushort), ('instructions', ctypes.c_char_p)]
    code = bytes.fromhex(filters.get(os.uname().machine, ''))
    libc = ctypes.CDLL(None)
    def load():
        libc.prctl(38, 1, 0, 0, 0)
        return libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0)
    if not code or struct.calcsize('P') != 8:
        return
    child = os.fork()
    if child == 0:
        os._exit(1 if load() else 0)
    if os.waitpid(child, 0)[1] == 0:
        load()
"""
"""A Python program that installs a filter with prctl 22. The kernel allows prctl 22 only after prctl 38, which forbids
new privileges. A child process first tries to install the filter and exit. Under some emulators this fails, because
every call fails as soon as a filter is installed.
"""


def load_filter() -> str:
    """Return a Python program that permanently installs the filter for its process and all children.

    If the filter cannot be installed, the program continues without the filter. The executor's `open_calls` then finds
    the system calls that can be used although they should be refused, and `Protection` reports them.
    """
    codes = {machine: (filter_program(machine) or b"").hex() for machine in ("x86_64", "aarch64")}
    return f"{_LOAD}\nload_filter({codes!r})\n"


_MODES = {"0": "none", "1": "strict mode", "2": "filter"}


def describe_mode(status: Mapping[str, str]) -> str:
    """Return the kind of system-call filter of a process. `status` has the fields of /proc/PID/status."""
    return _MODES.get(status.get("Seccomp", ""), "unknown")


def describe_calls(reported: object) -> tuple[str, list[str]]:
    """Describe in words which system calls are refused and which are open. Return also the names of the open ones.

    `reported` is the result of the executor's `open_calls`.
    """
    refused, open_calls = closed_and_open(reported)
    parts = [
        f"{kind}: {', '.join(names)}" for kind, names in (("refused", refused), ("open", open_calls)) if names
    ]
    return "; ".join(parts), open_calls
