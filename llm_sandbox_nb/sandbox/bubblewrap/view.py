"""Files inside a bubblewrap sandbox: read-only system and Python, a generated /etc, and writable folders in memory."""

from __future__ import annotations

import os
import site
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from llm_sandbox_nb.sandbox.options import SYSTEM_PATH

Argument = str | bytes
"""An argument of bubblewrap. Bytes are written to a file, and the number of the file's descriptor is the argument."""


class User(NamedTuple):
    """A user inside. The user's group has the same number as the user."""

    name: str
    uid: int
    home: str


PROFILE_USERS = {"standard": User("root", 0, "/root"), "strict": User("sandbox", 1000, "/home/sandbox")}

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC_FILES = (
    "adduser.conf", "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf",
    "crypto-policies", "debian_version", "default/useradd", "deluser.conf", "fonts", "ghostscript",
    "host.conf", "inputrc", "ImageMagick-6", "ImageMagick-7", "java-11-openjdk", "java-17-openjdk",
    "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libpaper.d", "localtime", "login.defs",
    "lsb-release", "magic", "magic.mime", "mime.types", "openmpi", "os-release", "pam.conf", "pam.d",
    "papersize", "perl", "pki/ca-trust/extracted", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols",
    "python3", "python3.11", "python3.12", "python3.13", "R", "security/limits.conf", "security/pam_env.conf",
    "services", "shells", "skel", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "texmf",
    "timezone",
)  # fmt: skip
_WITH_KEYS = ("pip.conf", ".condarc", "condarc")
"""Files of a Python environment that may contain keys for a package index. Inside, these files are empty."""
_PASSWD = """\
root:x:0:0:root:/root:/bin/bash
sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = """\
root:x:0:
tty:x:5:
mail:x:8:
users:x:100:
sandbox:x:1000:
nogroup:x:65534:
"""
_SHADOW = "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ("root", "sandbox", "nobody"))
_GSHADOW = "".join(f"{name}:*::\n" for name in ("root", "sandbox", "nogroup"))
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
_WORLD_WRITABLE = ("/tmp", "/dev/shm")
_SIZES_IN_64THS = {"root": 22, "/tmp": 11, "home": 11, "/dev/shm": 8, "/run": 1, "other": 1, "/etc": 1}
"""Maximum size of each writable folder in 64ths of the memory limit. All folders together are smaller than the limit.
So writing to full folders fails before the kernel kills processes for lack of memory."""
_COPIED_MODE = 0o644
_MAX_COPIED_BYTES = 16 * 1024
"""Maximum size of a file of /etc that is copied, because the copies use the sandbox's memory."""
_MEMORY_BYTES = 4 * 1024**3
"""Memory limit that is assumed for the sizes of folders if memory is not limited."""
CA_FILE = "/etc/llm-sandbox/ca.pem"
"""Path of the file with the site's certificates inside."""


@dataclass(frozen=True)
class Python:
    """A Python of the host that programs inside use. Its folders are visible inside at the same paths, read-only."""

    executable: str
    folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Paths of folders site-packages and dist-packages, in the order of `sys.path`. Empty for the system's Python."""
    scripts: tuple[str, ...] = ()
    """Folders with commands, in the order of PATH."""
    version: str = ""


@dataclass(frozen=True)
class View:
    """The file system inside: the arguments with which bubblewrap makes it, and the visible files of the host."""

    arguments: tuple[Argument, ...]
    shown: tuple[str, ...]
    """Path of each bound file or folder, which is the same on the host and inside."""
    environment: dict[str, str]
    root: str
    writable: dict[str, int]
    """Writable folders and their maximum sizes in bytes."""


@dataclass
class _Builder:
    arguments: list[Argument] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def parents(self, path: str) -> None:
        for folder in reversed(PurePath(path).parents[:-1]):
            # bubblewrap would make missing folders with mode 0700.
            self.arguments += ["--perms", "0755", "--dir", str(folder)]

    def bind(self, path: str) -> None:
        self.parents(path)
        self.arguments += ["--ro-bind", path, path]
        self.shown.append(path)

    def file(self, target: str, content: str | bytes, mode: str = "0644") -> None:
        data = content.encode() if isinstance(content, str) else content
        self.arguments += ["--perms", mode, "--file", data, target]

    def etc(self, path: str) -> None:
        """Show a file or folder of /etc. Copy a small file, mount anything else, and ignore a missing path.

        Mounts are slow. bubblewrap reads the list of all mounts for each mount, so the time grows with the square of
        the number of mounts.
        """
        source = Path(path)
        try:
            info = source.lstat()
            readable = stat.S_ISREG(info.st_mode) and stat.S_IMODE(info.st_mode) == _COPIED_MODE
            content = source.read_text("utf-8") if readable and info.st_size <= _MAX_COPIED_BYTES else None
        except (OSError, UnicodeDecodeError):
            content = None
        if content is not None:
            self.parents(path)
            self.file(path, content)
        elif source.exists():
            self.bind(path)

    def link(self, target: str, path: str) -> None:
        self.arguments += ["--symlink", target, path]

    def folder(self, path: str, size: int, mode: str) -> None:
        self.arguments += ["--perms", mode, "--size", str(size), "--tmpfs", path]


def running_python() -> Python:
    """Return the Python that runs this code, with all packages of its environment."""
    executable = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    candidates = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    candidates.append(str(Path(executable).parents[1]))
    known = list(dict.fromkeys(f for c in candidates for f in (c, os.path.realpath(c))))
    folders = [f for f in known if not any(other != f and _is_below(f, other) for other in known)]
    packages = _package_folders(folders)
    scripts = [str(Path(sys.prefix) / "bin"), str(Path(executable).parent)]
    loose = tuple(p for p in packages if not any(_is_below(p, f) for f in folders))
    return Python(
        executable,
        folders=tuple(f for f in folders if not _is_below(f, "/usr")) + loose,
        packages=packages,
        scripts=tuple(dict.fromkeys(scripts)),
        version=".".join(map(str, sys.version_info[:3])),
    )


def system_python() -> Python | None:
    """Return the system's Python, for the case that the running Python cannot be used inside. None if it is missing."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(name).exists():
            return Python(os.path.realpath(name))
    return None


def why_unusable(python: Python, *, read_by_others: bool) -> str:
    """Return the reason why a Python cannot be used in a sandbox. The reason is empty if the Python can be used.

    `read_by_others` is True if programs inside have another user id than this process. Then all users must be able to
    read the Python's files.
    """
    home = Path.home()
    for folder in python.folders:
        if home.is_relative_to(folder):
            return f"its folder {folder} holds the whole home folder"
        if Path.cwd().is_relative_to(folder):
            return f"its folder {folder} holds the folder in which you work"
        if read_by_others and not _readable_by_all(folder):
            return f"its folder {folder} is not readable for other users"
    if read_by_others and not _readable_by_all(python.executable):
        return f"{python.executable} is not readable for other users"
    return ""


def _readable_by_all(path: str) -> bool:
    bits = stat.S_IROTH | stat.S_IXOTH
    return Path(path).stat().st_mode & bits == bits


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _package_folders(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of `sys.path` that hold packages of the environment, the system, or the user."""
    roots = [*folders, "/usr"]
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    return tuple(
        entry
        for entry in dict.fromkeys(sys.path)
        if Path(entry).name in ("site-packages", "dist-packages")
        and Path(entry).is_dir()
        and (entry == user_site or any(_is_below(entry, root) for root in roots))
    )


def build_view(
    *,
    profile: str,
    root: str,
    python: Python,
    open_network: bool,
    memory: int | None,
    many_users: bool,
    ca_bundle: Path | None = None,
) -> View:
    """Return the view of a new sandbox with the working directory `root`.

    `memory` is the memory limit of the sandbox in bytes, or None without a limit. With `many_users`, root inside can
    write /etc, for example to add users. Otherwise /etc is read-only.
    """
    home = PROFILE_USERS[profile].home
    builder = _Builder()
    for path in map(Path, _SYSTEM_FOLDERS):
        if path.is_symlink():
            builder.link(str(path.readlink()), str(path))
        elif path.is_dir():
            builder.bind(str(path))
    memory = memory or _MEMORY_BYTES
    builder.folder("/etc", memory * _SIZES_IN_64THS["/etc"] // 64, "0755")
    _add_etc(builder, open_network=open_network, ca_bundle=ca_bundle)
    # With this mount, message queues are files, so that a restore can remove queues that commands have made.
    builder.arguments += ["--proc", "/proc", "--dev", "/dev", "--mqueue", "/dev/mqueue"]
    homes = {"/home": "other", "/root": "other"}
    homes["/root" if home == "/root" else "/home"] = "home"
    # `root` is mounted last, because it may be below another folder of the list.
    kinds = {"/tmp": "/tmp", **homes, "/run": "/run", "/dev/shm": "/dev/shm", root: "root"}
    writable = {folder: memory * _SIZES_IN_64THS[kind] // 64 for folder, kind in kinds.items()}
    for folder, size in writable.items():
        builder.folder(folder, size, "1777" if folder in _WORLD_WRITABLE else "0755")
    builder.link("/tmp", "/var/tmp")
    builder.arguments += ["--perms", "0755", "--dir", "/home/sandbox"]
    for folder in python.folders:
        builder.bind(folder)
        for path in (Path(folder, name) for name in _WITH_KEYS):
            if path.is_file() and not path.is_symlink():
                builder.arguments += ["--perms", "0644", "--ro-bind-data", b"", str(path)]
    environment = _add_environment_folder(builder, f"{home}/.venv", python)
    fixed = ["/dev", "/"] if many_users else ["/etc", "/dev", "/"]
    builder.arguments += [word for folder in fixed for word in ("--remount-ro", folder)]
    return View(tuple(builder.arguments), tuple(builder.shown), environment, root, writable)


def _add_etc(builder: _Builder, *, open_network: bool, ca_bundle: Path | None) -> None:
    for name in [*_ETC_FILES, "resolv.conf"] if open_network else _ETC_FILES:
        builder.etc(f"/etc/{name}")
    builder.file("/etc/passwd", _PASSWD)
    builder.file("/etc/group", _GROUP)
    builder.file("/etc/shadow", _SHADOW, "0600")
    builder.file("/etc/gshadow", _GSHADOW, "0600")
    builder.file("/etc/hosts", _HOSTS)
    builder.file("/etc/hostname", "sandbox\n")
    builder.file("/etc/nsswitch.conf", _NSSWITCH)
    builder.link("/proc/mounts", "/etc/mtab")
    if ca_bundle is not None:
        builder.file(CA_FILE, ca_bundle.read_bytes())


def _add_environment_folder(builder: _Builder, folder: str, python: Python) -> dict[str, str]:
    """Add a writable virtual environment that can import the host's read-only packages.

    Return the environment variables that activate it.
    """
    interpreter = Path(python.executable).name
    library = "python" + ".".join(python.version.split(".")[:2]) if python.version else interpreter
    packages = f"{folder}/lib/{library}/site-packages"
    for name in dict.fromkeys(("python", "python3", interpreter)):
        builder.link(python.executable, f"{folder}/bin/{name}")
    # If the package folders are known, the file `_environment.pth` adds them, and the system's are left out.
    system = "false" if python.packages else "true"
    settings = f"home = {Path(python.executable).parent}\ninclude-system-site-packages = {system}\n"
    builder.file(f"{folder}/pyvenv.cfg", settings)
    if python.packages:
        lines = [f"import site; site.addsitedir({package!r})\n" for package in python.packages]
        builder.file(f"{packages}/_environment.pth", "".join(lines))
    if any(Path(package, "pip").is_dir() for package in python.packages):
        script = (
            f"#!{folder}/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
        )
        for name in ("pip", "pip3"):
            builder.file(f"{folder}/bin/{name}", script, "0755")
    path = ":".join(
        [f"{folder}/bin", *(s for s in python.scripts if s not in SYSTEM_PATH.split(":")), SYSTEM_PATH]
    )
    return {"PATH": path, "VIRTUAL_ENV": folder}
