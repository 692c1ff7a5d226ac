"""Linux capabilities: their names, and programs that drop them. The kernel divides root's rights into capabilities."""

from __future__ import annotations

from collections.abc import Iterable

ROOT_INSIDE = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
)
"""Capabilities that root has inside a sandbox: rights over files, users and processes."""
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""Names of all capabilities, in the order of the kernel's numbers."""

_KEEP_ONLY = """
import ctypes, os, sys
def keep_only(mask):
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if not mask >> capability & 1:
            libc.prctl(24, capability, 0, 0, 0)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(mask, mask, 0)
    if libc.capset(header, data) or libc.prctl(38, 1, 0, 0, 0):
        sys.exit('rights cannot be given up: ' + os.strerror(ctypes.get_errno()))
    with open('/proc/self/status') as status:
        rights = [line for line in status if line.startswith('Cap') and int(line.split()[1], 16) & ~mask]
    if rights:
        sys.exit('rights cannot be given up: ' + ' '.join(rights))
"""
"""A Python program that defines `keep_only`, which drops all capabilities that the bit mask lacks. prctl 24 drops a
capability from the bounding set, so that no program can get this capability again. prctl 38 sets no_new_privs."""
_BECOME_USER = """
import ctypes, os, sys
def become(user):
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    libc.prctl(38, 1, 0, 0, 0)
    with open('/proc/self/status') as status:
        rights = [line for line in status if line.startswith('Cap') and int(line.split()[1], 16)]
    if rights:
        sys.exit('rights cannot be given up: ' + ' '.join(rights))
"""
TO_BECOME = ("CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID")
"""Capabilities that the program of `become_user` needs."""


def capability_names(mask: int) -> tuple[str, ...]:
    """Return the names, such as `CAP_CHOWN`, of the capabilities in a bit mask."""
    return tuple(f"CAP_{name}" for bit, name in enumerate(_CAPABILITIES) if mask >> bit & 1)


def keep_only(names: Iterable[str]) -> str:
    """Return a Python program that permanently drops all capabilities except `names`.

    The kernel's numbers of these capabilities must be below 32, because the program sets only the lower half of masks.
    """
    mask = sum(1 << _CAPABILITIES.index(name.removeprefix("CAP_")) for name in names)
    return f"{_KEEP_ONLY}\nkeep_only({mask})\n"


def become_user(uid: int) -> str:
    """Return a Python program that permanently becomes an ordinary user without capabilities."""
    return f"{_BECOME_USER}\nbecome({uid})\n"
