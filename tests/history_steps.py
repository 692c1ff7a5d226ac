"""Random things that a model might do to the files of its computer: bash, pip, dpkg and apt, the editor."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import shlex
import zipfile
from collections.abc import Awaitable, Callable

from llm_sandbox_nb.agent.tools.str_replace_editor import Editor, EditorError
from llm_sandbox_nb.sandbox.contract import Sandbox

Step = Callable[[Sandbox, random.Random], Awaitable[str]]
KIT = "/testbed/kit"
"""Where the packages lie that are installed."""
_NAMES = (
    "a",
    "b.txt",
    "with space",
    "ünïcödé",
    "new\nline",
    "-dash",
    "deep",
    "data.bin",
    "\udcff\udcfe",
    "Makefile",
)
_DOCKER_FOLDERS = (
    "/testbed",
    "/tmp",
    "/root",
    "/opt",
    "/etc",
    "/usr/local/share",
    "/var/tmp",
    "/srv",
    "/dev/shm",
    "/home",
)
_BUBBLEWRAP_FOLDERS = ("/testbed", "/tmp", "/root", "/etc", "/home", "/run", "/dev/shm")
_IMAGE_FOLDERS = (
    "/usr/share/common-licenses",
    "/usr/share/doc",
    "/etc",
    "/usr/lib/python3",
    "/var/lib",
    "/etc/apt",
)


def wheel(version: str) -> tuple[str, bytes]:
    name, info = "historic", f"historic-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n".encode()
        + b"# padding\n" * int(version.split(".")[0]) * 50,
        f"{name}/data.bin": random.Random(version).randbytes(20_000),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return f"{name}-{version}-py3-none-any.whl", packed.getvalue()


_MAKE_DEBS = f"""
set -e
for version in 1.0 2.0; do
  tree=$(mktemp -d -p {KIT}); chmod 755 $tree
  mkdir -p $tree/DEBIAN $tree/opt/historic $tree/usr/local/bin $tree/etc/historic.d
  printf 'Package: historic\\nVersion: %s\\nArchitecture: all\\nMaintainer: n <n@example.org>\\nDescription: test\\n' \\
    $version > $tree/DEBIAN/control
  echo "setting=$version" > $tree/etc/historic.d/historic.conf
  echo /etc/historic.d/historic.conf > $tree/DEBIAN/conffiles
  printf '#!/bin/sh\\necho %s\\n' $version > $tree/usr/local/bin/historic; chmod 755 $tree/usr/local/bin/historic
  head -c 30000 /dev/urandom > $tree/opt/historic/data.$version
  ln -s data.$version $tree/opt/historic/data
  dpkg-deb --root-owner-group -b $tree {KIT}/historic_${{version}}_all.deb > /dev/null
  rm -r $tree
done
"""


async def prepare(box: Sandbox) -> None:
    for version in ("1.0", "2.0"):
        name, data = wheel(version)
        await box.write_file(f"{KIT}/{name}", data)
    result = await box.run(_MAKE_DEBS)
    assert result.exit_code == 0, result.text


def _docker(box: Sandbox) -> bool:
    return box.protection.isolation == "docker"


def _place(box: Sandbox, rng: random.Random) -> str:
    folders = _DOCKER_FOLDERS if _docker(box) else _BUBBLEWRAP_FOLDERS
    if box.protection.isolation == "process":
        folders = (box.directories.root,)
    depth = [rng.choice(("d1", "d2", "dé")) for _ in range(rng.choice((0, 0, 1, 2)))]
    return "/".join([rng.choice(folders), *depth, rng.choice(_NAMES)])


def _quoted(path: str) -> str:
    return shlex.quote(path)


async def _shell(box: Sandbox, command: str) -> str:
    await box.run(command, timeout=60)
    return command


async def write(box: Sandbox, rng: random.Random) -> str:
    path = _place(box, rng)
    size = rng.choice((0, 1, 100, 5000, 70_000))
    folder = _quoted(path.rpartition("/")[0])
    return await _shell(
        box,
        f"mkdir -p {folder}; head -c {size} /dev/urandom > {_quoted(path)}; "
        f"chmod {rng.choice(('600', '4755', '644'))} {_quoted(path)}",
    )


async def append(box: Sandbox, rng: random.Random) -> str:
    folder = _place(box, rng).rpartition("/")[0]
    return await _shell(
        box,
        f"find {_quoted(folder)} -maxdepth 2 -xdev -type f -name '[a-d]*' -exec sh -c 'echo more >> \"$1\"' _ {{}} \\;",
    )


async def remove(box: Sandbox, rng: random.Random) -> str:
    path = _place(box, rng)
    if "/d" in path and rng.random() < 0.5:
        path = path.rpartition("/")[0]
    if path.count("/") < 2 or path in (_DOCKER_FOLDERS + _BUBBLEWRAP_FOLDERS):
        path += "/d1"
    return await _shell(box, f"rm -rf {_quoted(path)}")


async def metadata(box: Sandbox, rng: random.Random) -> str:
    path = _place(box, rng)
    folder = _quoted(path.rpartition("/")[0])
    act = rng.choice(
        (
            "chmod 0751",
            "chown 12:34",
            "touch -d '2001-02-03 04:05:06.789'",
            "touch",
            "chmod 1777",
            "chown -h 5:6",
        )
    )
    return await _shell(box, f"mkdir -p {folder}; {act} {rng.choice((folder, _quoted(path)))}")


async def links(box: Sandbox, rng: random.Random) -> str:
    path, other = _place(box, rng), _place(box, rng)
    folders = f"mkdir -p {_quoted(path.rpartition('/')[0])} {_quoted(other.rpartition('/')[0])}"
    act = rng.choice(
        (
            f"ln -sfn ../somewhere/else {_quoted(path)}",
            f"ln -sfn / {_quoted(path)}",
            f"echo linked > {_quoted(path)}; "
            f"ln -f {_quoted(path)} {_quoted(path + '2')}; ln -f {_quoted(path)} {_quoted(other)}",
            f"rm -rf {_quoted(path)}; mkfifo {_quoted(path)}",
            f"rm -rf {_quoted(path)}; mkdir {_quoted(path)}; echo in > {_quoted(path + '/in')}",
        )
    )
    return await _shell(box, f"{folders}; {act}")


async def move(box: Sandbox, rng: random.Random) -> str:
    path, other = _place(box, rng).rpartition("/")[0], _place(box, rng)
    if path.count("/") < 2:
        path += "/d1"
    return await _shell(
        box, f"mkdir -p {_quoted(other.rpartition('/')[0])}; mv -f {_quoted(path)} {_quoted(other)}"
    )


async def large(box: Sandbox, rng: random.Random) -> str:
    root = box.directories.root
    return await _shell(
        box,
        rng.choice(
            (
                f"head -c {rng.randrange(3, 6)}M /dev/urandom > {root}/large",
                f"[ -f {root}/large ] && "
                f"echo changed | dd of={root}/large bs=1 seek={rng.randrange(3_000_000)} conv=notrunc",
                f"[ -f {root}/large ] && head -c 100000 /dev/urandom >> {root}/large",
                f"[ -f {root}/large ] && fallocate -p -o 1048576 -l 1048576 {root}/large",
                f"truncate -s {rng.randrange(10**7, 10**8)} {root}/sparse; echo end >> {root}/sparse",
                f"truncate -s {rng.randrange(5 * 10**6)} {root}/large",
            )
        ),
    )


async def image_files(box: Sandbox, rng: random.Random) -> str:
    folder = rng.choice(_IMAGE_FOLDERS)
    found = f"find {folder} -xdev -maxdepth 2 -type f -size -64k 2>/dev/null | sort"
    find = f"{found} | head -{rng.randrange(1, 40)} | tail -1"
    act = rng.choice(
        (
            'rm -f "$f"',
            'echo "# changed" >> "$f"',
            'chmod 640 "$f"',
            'touch "$f"',
            'cp -a "$f" "$f.bak"',
            'mv "$f" "$f.moved"',
            'rm -rf "$(dirname "$f")"',
            'sed -i s/a/b/ "$f"',
            'rm -f "$f"; mkdir "$f"; echo x > "$f/x"',
        )
    )
    if "rm -rf" in act and folder in ("/etc", "/var/lib", "/usr/lib/python3"):
        act = 'rm -f "$f"'  # without these pip, dpkg and the shell itself would work no more
    return await _shell(box, f'f=$({find}); [ -n "$f" ] && [ "$f" != /etc/hosts ] && {{ {act}; }}')


async def pip(box: Sandbox, rng: random.Random) -> str:
    version = rng.choice(("1.0", "2.0"))
    act = f"install --no-index --no-deps --force-reinstall {KIT}/historic-{version}-py3-none-any.whl"
    if rng.random() < 0.3:
        act = "uninstall -y historic"
    return await _shell(box, f"python3 -m pip -q {act} --root-user-action=ignore")


async def packages(box: Sandbox, rng: random.Random) -> str:
    deb = f"{KIT}/historic_{rng.choice(('1.0', '2.0'))}_all.deb"
    if not _docker(box):  # its system is read-only: what a package holds is unpacked elsewhere
        return await _shell(box, f"dpkg-deb -x {deb} /root/unpacked; dpkg-deb -e {deb} /root/control")
    act = rng.choice(
        (
            f"dpkg -i {deb}",
            f"dpkg -i {deb}",
            "dpkg -r historic",
            "dpkg -P historic",
            f"apt-get -qq install -y --allow-downgrades {deb}",
        )
    )
    return await _shell(box, act)


async def editor(box: Sandbox, rng: random.Random) -> str:
    path = f"{box.directories.root}/{rng.choice(('notes.md', 'src/main.py'))}"
    edit = Editor(box)
    try:
        if rng.random() < 0.5:
            await edit.create(path, "first line\n" * rng.randrange(1, 30))
        else:
            await edit.insert(path, 1, f"inserted {rng.random()}")
    except EditorError:
        return f"editor refused {path}"
    return f"editor {path}"


STEPS: tuple[Step, ...] = (
    write, write, write, append, remove, metadata, metadata, links, links, move, large,
    image_files, image_files, pip, packages, editor,
)  # fmt: skip
LOCAL_STEPS: tuple[Step, ...] = (write, write, append, remove, metadata, links, links, move, large, editor)
"""For a sandbox of which only the working directory counts."""
