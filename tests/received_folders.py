"""Run folders as a stranger may make them, and a process that does with one what a person does with a run.

`SPOILED` has a function for each. `python received_folders.py` reads lines of JSON, does all that can be done with the
folder that each names, and answers with a line: what each operation gave. Whoever asks kills it when it hangs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import socket
import sqlite3
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECRET = b"the secret of this machine"
Spoil = Callable[[Path, Path], object]
SPOILED: dict[str, Spoil] = {}
"""By name: spoils a copy of an honest run folder; `outside` is a folder of the host."""
INDEX = "history/index.sqlite"


def spoiled(function: Spoil) -> Spoil:
    SPOILED[function.__name__] = function
    return function


@contextlib.contextmanager
def index(folder: Path) -> Iterator[sqlite3.Connection]:
    sql = sqlite3.connect(folder / INDEX, isolation_level=None)
    yield sql
    sql.close()


def sql_rows() -> dict[str, tuple[str, ...]]:
    """Statements that a stranger may have executed on the index."""
    outside = "(SELECT value FROM temp.facts)"
    return {
        "pack_named_by_an_absolute_path": (f"UPDATE packs SET name = {outside} || '/id_rsa'",),
        "pack_named_by_a_relative_path": ("UPDATE packs SET name = '../../../outside/id_rsa'",),
        "pack_in_a_folder_below": ("UPDATE packs SET name = 'below/' || name",),
        "pack_named_up": ("UPDATE packs SET name = '..' WHERE number = 1",),
        "pack_name_with_a_null": ("UPDATE packs SET name = name || char(0) || 'x'",),
        "pack_name_in_bytes": ("UPDATE packs SET name = CAST(name AS BLOB)",),
        "pack_of_a_negative_size": ("UPDATE packs SET size = -1",),
        "pack_of_an_endless_size": ("UPDATE packs SET size = 9223372036854775807",),
        "trigger_on_insert": (
            f"CREATE TRIGGER t AFTER INSERT ON packs BEGIN UPDATE packs SET name = '{'../' * 3}outside/id_rsa'; END",
        ),
        "trigger_on_entries": ("CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM packs; END",),
        "trigger_on_update": ("CREATE TRIGGER t AFTER UPDATE ON checkpoints BEGIN DELETE FROM objects; END",),
        "view_in_place_of_a_table": (
            "ALTER TABLE image RENAME TO x", "CREATE VIEW image AS SELECT * FROM x",
        ),
        "view_without_an_end": (
            "ALTER TABLE dropped RENAME TO x",
            "CREATE VIEW dropped AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id FROM n",
        ),
        "another_table": ("CREATE TABLE more(x)",),
        "another_column": ("ALTER TABLE packs ADD COLUMN more TEXT",),
        "generated_column": ("ALTER TABLE packs ADD COLUMN more TEXT AS (hex(zeroblob(size * 1000000))) VIRTUAL",),
        "another_index": ("CREATE INDEX more ON packs(size)",),
        "index_of_an_expression": ("CREATE INDEX more ON packs(abs(size))",),
        "virtual_table": ("CREATE VIRTUAL TABLE more USING fts5(x)",),
        "missing_table": ("DROP TABLE image",),
        "another_version": ("UPDATE meta SET value = '2'",),
        "checkpoint_that_is_its_own_parent": ("UPDATE checkpoints SET parent = number",),
        "checkpoints_in_a_circle": (
            "UPDATE checkpoints SET parent = (SELECT max(number) FROM checkpoints) WHERE parent IS NULL",
        ),
        "checkpoint_without_its_parent": ("UPDATE checkpoints SET parent = 4711 WHERE parent IS NOT NULL",),
        "checkpoint_with_a_text_as_time": ("UPDATE checkpoints SET time = 'now'",),
        "checkpoint_at_the_last_number": (
            "UPDATE checkpoints SET number = 9223372036854775807 WHERE number = (SELECT max(number) FROM checkpoints)",
        ),
        "path_that_leads_up": ("UPDATE entries SET path = CAST('/../../outside/new' AS BLOB) WHERE path LIKE '%.txt'",),
        "path_that_is_relative": ("UPDATE entries SET path = CAST('outside' AS BLOB) WHERE path LIKE '%.txt'",),
        "path_in_a_text": ("UPDATE entries SET path = CAST(path AS TEXT)",),
        "entry_of_many_levels": ("UPDATE entries SET entry = CAST(replace(hex(zeroblob(100000)), '0', '[') AS BLOB)",),
        "entry_of_other_kinds": ("UPDATE entries SET entry = CAST('[1,2,3,4,5,6,7,8,9,10]' AS BLOB)",),
        "entry_that_is_no_json": ("UPDATE entries SET entry = x'ff00ff'",),
        "entry_in_a_text": ("UPDATE entries SET entry = CAST(entry AS TEXT)",),
        "object_outside_of_its_pack": ("UPDATE objects SET offset = 1000000000000",),
        "object_before_its_pack": ("UPDATE objects SET offset = -1",),
        "object_of_an_endless_size": ("UPDATE objects SET size = 4000000000",),
        "object_in_no_pack": ("UPDATE objects SET pack = 4711",),
        "object_with_a_short_digest": ("UPDATE objects SET digest = substr(digest, 1, 8)",),
        "dropped_with_a_path": ("INSERT INTO dropped VALUES ('../../outside')",),
    }  # fmt: skip


def _with_sql(statements: tuple[str, ...]) -> Spoil:
    def spoil(folder: Path, outside: Path) -> None:
        with index(folder) as sql:
            sql.execute("CREATE TEMP TABLE facts(value)")
            sql.execute("INSERT INTO temp.facts VALUES (?)", (str(outside),))
            for statement in statements:
                sql.execute(statement)

    return spoil


SPOILED |= {name: _with_sql(statements) for name, statements in sql_rows().items()}


# -- a file of the host as content ---------------------------------------------------------------------------------


def _claim(folder: Path, digest: bytes, size: int) -> None:
    with index(folder) as sql:
        for number, path, entry in sql.execute("SELECT checkpoint, path, entry FROM entries").fetchall():
            if entry is not None and path.endswith(b".txt"):
                row = json.loads(entry)
                row[6], row[7] = size, [[0, size, digest.hex()]]
                changed = json.dumps(row).encode()
                sql.execute(
                    "UPDATE entries SET entry = ? WHERE checkpoint = ? AND path = ?", (changed, number, path)
                )


@spoiled
def file_of_the_host_as_a_pack(folder: Path, outside: Path) -> None:
    digest = hashlib.sha256(SECRET).digest()
    with index(folder) as sql:
        sql.execute("INSERT INTO packs VALUES (99, ?, ?)", (str(outside / "id_rsa"), len(SECRET)))
        sql.execute("INSERT INTO objects VALUES (?, 99, 0, ?, ?)", (digest, len(SECRET), zlib.crc32(SECRET)))
    _claim(folder, digest, len(SECRET))


@spoiled
def link_to_the_host_as_a_pack(folder: Path, outside: Path) -> None:
    name = f"{'ab' * 12}.pack"
    (folder / "history/packs" / name).symlink_to(outside / "id_rsa")
    digest = hashlib.sha256(SECRET).digest()
    with index(folder) as sql:
        sql.execute("INSERT INTO packs VALUES (99, ?, ?)", (name, len(SECRET)))
        sql.execute("INSERT INTO objects VALUES (?, 99, 0, ?, ?)", (digest, len(SECRET), zlib.crc32(SECRET)))
    _claim(folder, digest, len(SECRET))


@spoiled
def content_that_is_not_what_its_digest_says(folder: Path, outside: Path) -> None:
    for pack in (folder / "history/packs").iterdir():
        pack.write_bytes(bytes(len(pack.read_bytes())))
    with index(folder) as sql:
        for digest, size in sql.execute("SELECT digest, size FROM objects").fetchall():
            sql.execute("UPDATE objects SET crc = ? WHERE digest = ?", (zlib.crc32(bytes(size)), digest))


@spoiled
def pieces_that_claim_another_length(folder: Path, outside: Path) -> None:
    with index(folder) as sql:
        (digest,) = sql.execute("SELECT digest FROM objects LIMIT 1").fetchone()
    _claim(folder, digest, 1024 * 1024)


@spoiled
def file_of_an_endless_size(folder: Path, outside: Path) -> None:
    with index(folder) as sql:
        for number, path, entry in sql.execute("SELECT checkpoint, path, entry FROM entries").fetchall():
            if entry is not None and path.endswith(b".txt"):
                row = json.loads(entry)
                row[6], row[7] = 2**62, []
                sql.execute(
                    "UPDATE entries SET entry = ? WHERE checkpoint = ? AND path = ?",
                    (json.dumps(row).encode(), number, path),
                )


@spoiled
def shell_that_unpacks_to_a_gigabyte(folder: Path, outside: Path) -> None:
    machine = zlib.compressobj(9)
    packed = b"".join(machine.compress(bytes(2**20)) for _ in range(1024)) + machine.flush()
    with index(folder) as sql:
        sql.execute("UPDATE checkpoints SET shell = ?", (packed,))


@spoiled
def chain_of_very_many_checkpoints(folder: Path, outside: Path) -> None:
    with index(folder) as sql:
        sql.execute("BEGIN")
        rows = ((n, f"x{n}", n - 1, 0.0, 0, 0, 0.0, "", None) for n in range(1001, 121_000))
        sql.execute("INSERT INTO checkpoints VALUES (1000, 'x', NULL, 0.0, 0, 0, 0.0, '', NULL)")
        sql.executemany("INSERT INTO checkpoints VALUES (?,?,?,?,?,?,?,?,?)", rows)
        sql.execute("COMMIT")


# -- links, pipes, devices, sizes ----------------------------------------------------------------------------------


def _instead(name: str, how: str) -> Spoil:
    def spoil(folder: Path, outside: Path) -> None:
        place = folder / name
        place.parent.mkdir(exist_ok=True, parents=True)
        if place.is_dir() and not place.is_symlink():
            place.rename(folder.parent / "taken-away")
        else:
            place.unlink(missing_ok=True)
        match how:
            case "link to a file":
                place.symlink_to(outside / "id_rsa")
            case "link to nothing":
                place.symlink_to(outside / "made")
            case "link to a folder":
                place.symlink_to(outside)
            case "link to a device":
                place.symlink_to("/dev/zero")
            case "link to a database":
                place.symlink_to(outside / "index.sqlite")
            case "pipe":
                os.mkfifo(place)
            case "folder":
                place.mkdir()
            case "socket":
                with contextlib.chdir(place.parent), socket.socket(socket.AF_UNIX) as made:
                    made.bind(place.name)
            case "huge":
                place.touch()
                os.truncate(place, 3 * 1024**4)
            case "garbage":
                place.write_bytes(bytes(range(256)) * 100)

    return spoil


def _any_pack(how: str) -> Spoil:
    def spoil(folder: Path, outside: Path) -> None:
        for pack in sorted((folder / "history/packs").iterdir()):
            _instead(str(pack.relative_to(folder)), how)(folder, outside)

    return spoil


def _any_blob(how: str) -> Spoil:
    def spoil(folder: Path, outside: Path) -> None:
        for blob in sorted((folder / "blobs").iterdir()):
            _instead(str(blob.relative_to(folder)), how)(folder, outside)

    return spoil


PLACES: dict[str, tuple[str, ...]] = {
    "journal.jsonl": ("link to a file", "link to a device", "pipe", "folder", "socket", "huge", "garbage"),
    "history": ("link to a folder", "pipe"),
    "history/packs": ("link to a folder", "link to nothing", "pipe"),
    "history/lock": ("link to nothing", "link to a file", "link to a device", "pipe", "folder"),
    INDEX: ("link to a database", "link to nothing", "pipe", "folder", "huge", "garbage"),
    f"{INDEX}-wal": ("link to a file", "link to nothing", "link to a device", "pipe", "folder", "garbage"),
    f"{INDEX}-shm": ("link to a file", "pipe"),
    f"{INDEX}-journal": ("link to a file", "pipe"),
    f"{INDEX}.fresh": ("link to a database", "link to nothing", "folder", "garbage"),
    f"{INDEX}.partial": ("link to a file", "folder"),
    "history/packs/below": ("folder", "link to a folder"),
    "files": ("link to a folder", "link to nothing", "pipe"),
    "files/result.txt": ("link to a file", "pipe", "folder", "huge", "socket"),
    "files/below": ("link to a folder",),
    "files.partial": ("link to a file", "link to nothing", "folder"),
    "blobs": ("link to a folder", "pipe"),
    "trajectory.json": ("link to a file", "pipe", "folder"),
    "run.html": ("link to a file", "link to nothing", "pipe", "folder"),
    "replay.json": ("link to a file", "link to a device", "pipe", "folder", "huge", "garbage"),
}
SPOILED |= {f"{name} is a {how}": _instead(name, how) for name, ways in PLACES.items() for how in ways}
for kind in ("link to a file", "link to a device", "pipe", "folder", "huge"):
    SPOILED[f"a pack is a {kind}"] = _any_pack(kind)
    SPOILED[f"a blob is a {kind}"] = _any_blob(kind)


@spoiled
def journal_of_sqlite_that_names_a_file_to_delete(folder: Path, outside: Path) -> None:
    """When SQLite plays a journal back, it removes the journal of journals that this one names."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(outside / "id_rsa").encode()
    head = magic + struct.pack(">IIIII", 0, 0, 1, 512, 4096)
    named = struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    (folder / f"{INDEX}-journal").write_bytes(head.ljust(512, b"\0") + named)
    data = bytearray((folder / INDEX).read_bytes())
    data[18:20] = b"\1\1"  # no write-ahead log
    (folder / INDEX).write_bytes(data)


@spoiled
def pages_that_refer_to_themselves(folder: Path, outside: Path) -> None:
    """Inner pages of the database whose children are the same pages: more rows than any file can hold."""
    with index(folder) as sql:
        sql.execute("BEGIN")
        sql.executemany("INSERT INTO image VALUES (?, NULL, 0)", ((b"/%06d" % n,) for n in range(20_000)))
        sql.execute("COMMIT")
    data = bytearray((folder / INDEX).read_bytes())
    for start in range(4096, len(data), 4096):
        if data[start] == 5:
            cells = struct.unpack_from(">H", data, start + 3)[0]
            first = data[start + 8 : start + 12]
            for number in range(cells):
                (place,) = struct.unpack_from(">H", data, start + 12 + 2 * number)
                data[start + place : start + place + 4] = first
    (folder / INDEX).write_bytes(data)


@spoiled
def damaged_pages(folder: Path, outside: Path) -> None:
    data = bytearray((folder / INDEX).read_bytes())
    for start in range(4096, len(data), 4096):
        data[start + 100 : start + 140] = os.urandom(40)
    (folder / INDEX).write_bytes(data)


@spoiled
def deep_folders(folder: Path, outside: Path) -> None:
    place = os.open(folder / "files", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)


@spoiled
def artifact_with_a_path_that_leads_up(folder: Path, outside: Path) -> None:
    _edit(
        folder,
        lambda one: one | ({"path": "../../outside/id_rsa"} if one["kind"] == "artifact.saved" else {}),
    )


@spoiled
def artifact_behind_a_link(folder: Path, outside: Path) -> None:
    (folder / "files/linked").symlink_to(outside)
    _edit(folder, lambda one: one | ({"path": "linked/id_rsa"} if one["kind"] == "artifact.saved" else {}))


@spoiled
def blob_named_by_a_path(folder: Path, outside: Path) -> None:
    def change(one: dict[str, Any]) -> dict[str, Any]:
        if isinstance(one.get("stdout"), dict):
            one["stdout"]["sha256"] = "../../outside/id_rsa"
        return one

    _edit(folder, change)


@spoiled
def checkpoint_that_is_a_path(folder: Path, outside: Path) -> None:
    _edit(folder, lambda one: one | ({"checkpoint": "../../outside"} if "checkpoint" in one else {}))


@spoiled
def events_that_are_their_own_parents(folder: Path, outside: Path) -> None:
    _edit(folder, lambda one: one | {"id": "same", "parent": "same"})


@spoiled
def line_of_many_levels(folder: Path, outside: Path) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b"[" * 200_000 + b"\n" + b'{"kind": "x"}\n')


@spoiled
def line_that_is_too_long(folder: Path, outside: Path) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind": "' + b"x" * (65 * 2**20) + b'"}\n')


def _first_event(facts: dict[str, Any]) -> Spoil:
    def spoil(folder: Path, outside: Path) -> None:
        def change(one: dict[str, Any]) -> dict[str, Any]:
            return one | ({"settings": one["settings"] | facts} if one["kind"] == "run.started" else {})

        _edit(folder, change)

    return spoil


SPOILED |= {
    "limits of other kinds": _first_event({"limits": {"steps": "many", "cost": [], "time": {}}}),
    "limits that are a list": _first_event({"limits": [1, 2]}),
    "sampling of other kinds": _first_event({"sampling": {"temperature": "hot", "extra_body": 1}}),
    "prompts of other kinds": _first_event({"prompts": {"system_prompt": "x", "output_dir": ["a"]}}),
    "a time-out that is a text": _first_event({"command_timeout": "long"}),
    "servers that are a list": _first_event({"mcp": [1, {"a": 2}]}),
    "servers of other kinds": _first_event(
        {"mcp": {"s": {"tools": [1, {"name": []}], "url": 7, "server": 1}}}
    ),
    "a check of other kinds": _first_event(
        {"check": {"command": [1], "files": {"/etc/passwd": 1}, "tries": "x"}}
    ),
    "a network of other kinds": _first_event({"network": ["open"], "allow": {"a": 1}, "secrets": [[1]]}),
    "a replay of a run that leads up": _first_event({"replay_of": "../../outside", "rebuilt_from": [1]}),
    "files of another run": _first_event({"files_of": {"folder": "/etc", "step": "x"}}),
    "calls that are a number": _first_event({"tool_calls": 7}),
}


@spoiled
def messages_of_other_kinds(folder: Path, outside: Path) -> None:
    message = {"role": "assistant", "tool_calls": [1, {"id": []}, {}], "content": [1, {"text": 2}]}
    _edit(folder, lambda one: one | ({"message": message} if "message" in one else {}))


@spoiled
def what_a_server_refused_of_other_kinds(folder: Path, outside: Path) -> None:
    learned = {"refused": [[]], "dropped": {"a": 1}, "wanted": 7, "no_system": "x"}
    failed = {
        "kind": "model.failed",
        "step": 1,
        "attempt": 1,
        "error": "setting",
        "message": "x",
        "learned": learned,
    }
    with (folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps(failed | {"id": "odd", "time": 1.0}) + "\n")


@spoiled
def tools_of_other_kinds(folder: Path, outside: Path) -> None:
    tools = [{}, {"function": 1}, {"function": {"name": [], "parameters": 7}}, {"type": []}]
    _edit(folder, lambda one: one | ({"tools": tools} if one["kind"] == "run.started" else {}))


@spoiled
def changed_settings_of_other_kinds(folder: Path, outside: Path) -> None:
    odd = {"kind": "settings.changed", "settings": {"check": 7, "tool_calls": []}, "limits": {"steps": []}}
    odd |= {"halts": {"a": [1]}, "network": {"allow": 7}, "source": "x", "id": "odd", "time": 1.0}
    with (folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps(odd) + "\n")


@spoiled
def steps_that_are_endless_numbers(folder: Path, outside: Path) -> None:
    _edit(
        folder, lambda one: one | ({"step": one["step"] * 10**15} if isinstance(one.get("step"), int) else {})
    )


@spoiled
def sandbox_of_other_kinds(folder: Path, outside: Path) -> None:
    protection = {"isolation": ["process"], "profile": {}, "network": [], "details": "x"}
    _edit(folder, lambda one: one | ({"protection": protection} if one["kind"] == "sandbox.ready" else {}))


@spoiled
def link_to_the_host_in_a_checkpoint(folder: Path, outside: Path) -> None:
    """A link that leads out of the sandbox, and files below it, in the files of every step."""
    with index(folder) as sql:
        rows = sql.execute(
            "SELECT checkpoint, path, entry FROM entries WHERE path LIKE '%/result.txt'"
        ).fetchall()
        for number, path, entry in rows:
            place = path.rpartition(b"/")[0]
            link = ["l", 0, 0o777, os.getuid(), os.getgid(), 0, 0, str(outside), None, None]
            for name, row in ((b"/linked", json.dumps(link).encode()), (b"/linked/made", entry)):
                sql.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, place + name, row))
            sql.execute(
                "INSERT INTO entries VALUES (?, ?, ?)", (number, os.fsencode(outside / "made"), entry)
            )


def _edit(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path = folder / "journal.jsonl"
    lines = [json.dumps(change(json.loads(line))) + "\n" for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(lines), "utf-8")


# -- what a person does with a run ---------------------------------------------------------------------------------


def operations(
    folder: Path, honest: Path, script: str, *, sandbox: bool, replay: bool
) -> dict[str, Callable[[], object]]:
    """By name, in the order in which they are done; those that need a sandbox only where that is asked for."""
    from llm_sandbox_nb.cli import main
    from llm_sandbox_nb.runs.run import Run
    from llm_sandbox_nb.server.history_handlers import _journal, _look
    from llm_sandbox_nb.server.history_reader import HistoryReader, HistoryReaders
    from llm_sandbox_nb.trajectory.run_summary import summaries

    def command(*words: str) -> object:
        said, warned = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
            code = main([*words])
        # `analyze` names what it left out, and then says that nothing is left.
        assert len(warned.getvalue().strip().splitlines()) <= 1 + (words[0] == "analyze"), warned.getvalue()
        return code, said.getvalue()[-2000:], warned.getvalue()

    def look(reader: HistoryReader) -> object:
        found = []
        checkpoints = [one["id"] for one in reader.checkpoints()][:4]
        for one in checkpoints:
            for file in reader.folder(one, "")["files"]:
                found.append(file["path"])
            for change in reader.changes(checkpoints[0], one)["changes"]:
                if change["path"].endswith(".txt"):
                    found.append(reader.read(one, change["path"], 2**20).decode("latin-1"))
                    found.append(reader.diff(checkpoints[0], one, change["path"])["note"])
        return found

    def history() -> object:
        readers = HistoryReaders()
        try:
            return _look(readers, folder, look)
        finally:
            readers.close()

    def file_contents() -> object:
        run = Run.load(folder)
        small = {name: file for name, file in run.files.items() if file.size < 2**20}
        return repr(run), [(name, file.read_text("latin-1")[:1000]) for name, file in small.items()]

    found: dict[str, Callable[[], object]] = {
        "list": lambda: [one.id for one in summaries(folder.parent, 10)[0]],
        "runs": lambda: command("runs", str(folder.parent)),
        "load": lambda: file_contents(),
        "show": lambda: command("show", str(folder)),
        "export": lambda: command("export", str(folder)),
        "page": lambda: str(Run.load(folder).to_html(folder.parent / "page.html")),
        "analyze": lambda: command("analyze", str(folder)),
        "history": history,
        "journal": lambda: len(_journal(folder, 2**24)),
        "preview": lambda: str(Run.load(folder).preview(1)),
        "compare": lambda: str(Run.load(folder).compare(Run.load(honest))),
        "branches": lambda: str(Run.load(folder).attempts),
    }
    if sandbox:
        found |= {
            "fork": lambda: Run.load(folder).fork(1, isolation="process").close(),
            "resume": lambda: repr(Run.load(folder).resume("More.", model=script, isolation="process")),
        }
    if replay:
        found |= {
            "replay": lambda: str(Run.load(folder).replay(isolation="process").steps),
            "rebuild": lambda: repr(Run.load(folder).rebuild(isolation="process")),
        }
    return found | {
        "rewind": lambda: str(Run.load(folder).rewind(1)),
        "undo": lambda: str(Run.load(folder).undo()),
    }


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What each operation gave: seconds, the kind of an error, and what was said."""
    folder, honest = Path(question["folder"]), Path(question["honest"])
    told: dict[str, Any] = {}
    Path("/proc/self/clear_refs").write_text("5")  # the highest use of memory so far counts no more
    work = operations(
        folder, honest, question["script"], sandbox=question["sandbox"], replay=question["replay"]
    )
    for name, operation in work.items():
        began, kind = time.monotonic(), ""
        try:
            said = str(operation())
        except BaseException as error:  # noqa: BLE001 - told to whoever asked
            kind, said = type(error).__name__, str(error)
            if os.environ.get("RECEIVED_FOLDERS_TRACE"):
                traceback.print_exc()
        told[name] = [time.monotonic() - began, kind, said]
    status = Path("/proc/self/status").read_text()
    return {"told": told, "memory": int(status.partition("VmHWM:")[2].split()[0]) * 1024}


def main_loop() -> None:
    """Answer until there are no more questions. No file may become large meanwhile."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 2**20, 100 * 2**20))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main_loop()
