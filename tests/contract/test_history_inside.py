"""What the executor tells of the filesystem's history, and what it makes of a plan."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from history_channel import Host, truth

from llm_sandbox_nb.sandbox.docker.images import SLIM_IMAGE

pytestmark = pytest.mark.own_sandbox

ZOO = r"""
cd ROOT
mkdir -p deep/er/still 'sp ace' empty; echo one > deep/er/a; echo two > 'sp ace/b c'
printf x > "$(printf 'bad\377\nname')"; ln -s deep/er/a link; ln -s nowhere dangling
ln deep/er/a deep/same; ln deep/er/a also; mkfifo pipe
truncate -s 9M holes; printf middle | dd of=holes bs=1 seek=5000000 conv=notrunc status=none
head -c 2500000 /dev/urandom > large; : > nothing; chmod 4751 nothing; chmod 1777 empty; chmod 400 large
touch -d '2001-02-03 04:05:06.789012345' deep/er/still; touch -h -d 1999-01-01 link
"""


async def zoo(box):
    result = await box.run(ZOO.replace("ROOT", box.directories.root), timeout=60)
    assert result.exit_code == 0, result.text


@pytest.mark.smoke
async def test_everything_is_told_once_and_put_back_exactly(box: Any) -> None:
    root = box.directories.root
    host = Host(box)
    first = await host.checkpoint()
    assert not first.outcome["incremental"]
    await zoo(box)
    told = await host.checkpoint()
    assert told.outcome["incremental"]
    assert told.outcome["incomplete"] == ""
    assert f"{root}/deep/er/still" in told.entries
    again = await host.checkpoint()
    assert (again.entries, again.gone, again.chunks) == ({}, [], {})
    before, manifest = await truth(box, root), dict(host.manifest)
    assert host.content(f"{root}/holes")[5_000_000:5_000_006] == b"middle"
    assert sum(part[1] for part in manifest[f"{root}/holes"][8]) < 100_000
    assert {manifest[f"{root}/{name}"][9] for name in ("also", "deep/same", "deep/er/a")} == {f"{root}/also"}
    await box.run(
        f"cd {root}; rm -rf deep link 'sp ace'; mkdir link; echo new > link/x; echo y > deep; chmod 777 nothing;"
        " truncate -s 3M holes; printf z >> large; mv empty moved; rm bad*; ln nothing nothing2; rm dangling"
    )
    await host.checkpoint()
    done = await host.restore(manifest)
    assert done.outcome["failed"] == [], done.outcome
    assert await truth(box, root) == before
    after = await host.checkpoint()
    assert (after.entries, after.gone) == ({}, [])


@pytest.mark.isolations("process")
async def test_a_newcomer_is_told_all_and_a_lost_answer_loses_nothing(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    await box.run("echo 1 > one")
    await host.checkpoint()
    await box.run("echo 2 > two; rm one")
    lost = await host.ask("checkpoint", id="lost", since="c2")
    assert lost.outcome["incremental"]
    told = await host.checkpoint()
    assert told.outcome["incremental"]
    assert sorted(path.rpartition("/")[2] for path in told.entries) == ["testbed", "two"]
    assert [path.rpartition("/")[2] for path in told.gone] == ["one"]
    assert len(told.chunks) == 1
    unknown = await host.ask("checkpoint", id="x", since="never heard of")
    assert not unknown.outcome["incremental"]
    assert len(unknown.chunks) == 1
    assert unknown.shell
    assert len(unknown.entries) == len(host.manifest)


@pytest.mark.smoke
async def test_changes_that_leave_the_times_alone(box: Any) -> None:
    """Back-dated writes, and memory that stays mapped while it is written to."""
    root = box.directories.root
    host = Host(box)
    await box.run(
        "echo aaaa > f; touch -d 2020-01-01 f; head -c 8192 /dev/zero > mapped;"
        'python3 -c "import mmap, os, time\n'
        "m = mmap.mmap(os.open('mapped', os.O_RDWR), 0)\n"
        "for n in range(20):\n"
        "    while not os.path.exists('go%d' % n): time.sleep(0.01)\n"
        "    m[n:n+1] = b'1'\n"
        "    open('done%d' % n, 'w').close()\n"
        'while True: time.sleep(1)" &'
    )

    async def write(number):
        await box.run(f"touch go{number}; while [ ! -e done{number} ]; do sleep 0.01; done")

    await write(0)
    for number in range(1, 20):
        await host.checkpoint()
        assert host.content(f"{root}/mapped")[:20] == b"1" * number + bytes(20 - number)
        look = (await box.run("stat -c %y,%z mapped")).stdout
        await box.run("echo bbbb > f; touch -d 2020-01-01 f")
        await write(number)
        if (await box.run("stat -c %y,%z mapped")).stdout == look:
            break  # else the kernel has written it to the disk meanwhile, and tells of the next write
    else:
        raise AssertionError("the times changed each time")
    await host.checkpoint()
    assert host.content(f"{root}/f") == b"bbbb\n"
    assert host.content(f"{root}/mapped")[: number + 1] == b"1" * (number + 1)


@pytest.mark.isolations("process")
async def test_same_size_within_one_tick_of_the_clock(box: Any) -> None:
    host = Host(box)
    await host.checkpoint()
    for _ in range(20):
        await box.write_file("f", b"first")
        fd = os.open(f"{box.directories.root}/f", os.O_WRONLY)
        taking = asyncio.ensure_future(host.checkpoint())
        for _ in range(200):
            os.pwrite(fd, os.urandom(5), 0)
            await asyncio.sleep(0)
        await taking
        os.pwrite(fd, b"third", 0)
        os.close(fd)
        await host.checkpoint()
        assert host.content(f"{box.directories.root}/f") == b"third"


# ------------------------------------------------------------------------------------------------ the image

IMAGE_CHANGES = {
    "append": "echo more >> /usr/share/perl5/Debconf/Log.pm",
    "mode": "chmod 600 /usr/share/perl5/Debconf/Log.pm",
    "owner": "chown 1:1 /usr/share/perl5/Debconf/Log.pm",
    "times": "touch -d 2001-01-01 /usr/share/perl5/Debconf/Log.pm",
    "gone": "rm /usr/share/perl5/Debconf/Log.pm",
    "renamed": "mv /usr/share/perl5/Debconf/Log.pm /usr/share/perl5/Debconf/Gol.pm",
    "moved": "mv /usr/share/perl5/Debconf /tmp/moved",
    "folder replaced": "rm -rf /usr/share/perl5/Debconf; mkdir /usr/share/perl5/Debconf",
    "by a link": "rm -rf /usr/share/perl5/Debconf; ln -s /tmp /usr/share/perl5/Debconf",
    "hard link": "ln /usr/share/perl5/Debconf/Log.pm /tmp/linked; echo x >> /tmp/linked",
    "folder's mode": "chmod 700 /usr/share/perl5/Debconf",
    "link itself": "ln -sfn perl5 /usr/share/link; mv /usr/share/perl5 /usr/share/perl6",
    "exchanged": "python3 -c \"import ctypes; ctypes.CDLL(None).renameat2(-100, b'/usr/share/perl5/Debconf/Log.pm',"
    " -100, b'/usr/share/perl5/Debconf/Db.pm', 2)\"",
    "mapped": "python3 -c \"import mmap, os; mmap.mmap(os.open('/usr/share/perl5/Debconf/Log.pm', os.O_RDWR), 0)"
    "[0:1] = b'!'\"",
}


@pytest.mark.isolations("docker")
@pytest.mark.sandbox(image=SLIM_IMAGE)
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(list(IMAGE_CHANGES)[::3], id="some"),
        pytest.param(list(IMAGE_CHANGES), id="all", marks=pytest.mark.campaign),
    ],
)
async def test_changes_of_the_image_are_seen_and_nothing_else_is_looked_at(box: Any, ways: list[str]) -> None:
    """Every way to change a file of the image shows, although whole folders are not looked into."""
    folder = "/usr/share"
    host = Host(box)
    first = await host.checkpoint()
    assert len(first.entries) < 500
    for how in ways:
        command = IMAGE_CHANGES[how]
        before, _ = await truth(box, folder)
        result = await box.run(f"cp -a {folder}/perl5 /tmp/kept && {command}")
        assert result.exit_code == 0, result.text
        after, _ = await truth(box, folder)
        told = await host.checkpoint()
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        assert changed, how
        for path in changed:
            seen = path in told.entries or any(f"{path}/".startswith(f"{gone}/") for gone in told.gone)
            # What is missing in a folder that is told in full is gone.
            listed = any(path.startswith(f"{up}/") and not host.manifest[up][2] for up in host.manifest)
            assert seen or (path not in after and path not in host.manifest and listed), (how, path)
        for path, row in host.manifest.items():
            assert not path.startswith(f"{folder}/") or path in after, (how, path)
            if path in after and not row[2]:
                assert row[3:7] == [*after[path][1:4], after[path][4]], (how, path)
        await box.run(
            f"rm -rf {folder}/perl5 {folder}/perl6 {folder}/link; cp -a /tmp/kept {folder}/perl5; rm -rf /tmp/*"
        )
        await host.checkpoint()
