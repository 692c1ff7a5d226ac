"""The history of the filesystem as it travels: three requests, one form of records.

A stream of records is what a checkpoint writes (frames of STDOUT), what a description writes (the same), and
what the body of a restore holds. A record is a header `>BI` (kind, length of the payload) and its payload, at
most 2 MiB. Paths are absolute and normal (`/`, `/a/b`), in JSON as everywhere in this protocol (bytes that are
no UTF-8 as surrogates).

Kinds in what the sandbox writes:

- `C` a piece of content, raw, 1 byte to 1 MiB; it is named by its SHA-256 in hex. It comes before the entry
  that names it, and once in a stream.
- `E` a JSON array of entries. A directory comes before what is in it; of a path only the last entry counts.
- `G` a JSON array of paths that are gone, with everything below them. It comes before any entry of that path.
- `S` the state of the shell, opaque, at most 1 MiB; at most one in a stream.

An entry is a JSON array of eleven:

    [path, type, base, mode, uid, gid, mtime_ns, size, detail, link, xattrs]

- type: `d` directory, `f` file, `l` symbolic link, `p` fifo, `c` and `b` devices. Sockets are left out.
- base: 1 when nothing has touched it since the sandbox was started, so it is as in the image: a directory with
  everything below it (nothing below it is told), a file or a link with its content (detail, link and xattrs are
  null). What an image directory holds is told when anything in it was touched: then all entries in it are told,
  so what is not told is not there. Metadata is always true.
- mode: the permission bits, at most 0o7777. size: bytes of a file, else 0.
- detail: of a file an array of `[offset, length, digest]` in order, with zeros where nothing is named (a hole or
  the rest up to size), or null when the content was not kept (see `incomplete`); of a link its target; of a
  device `[major, minor]`; else null.
- link: null, or when the file has several names here, the first of these names in the order of their bytes; it is
  the same for all of them, and each of them has the whole entry.
- xattrs: null, or an object of names and base64 values.

`{"op": "checkpoint", "id": NEW, "since": OLD or null, "timeout": seconds, "limits": {...}}` tells what differs from
OLD when that is what is remembered, else everything. Digests of what OLD holds, and of what came earlier in the
stream, are named without the content being sent again; with `since` null everything is sent. Limits (all may be
missing): `entries` remembered, `file` bytes of one file, `bytes` of content in this stream, `seconds`. Outcome:

    {"id": NEW, "incremental": true when it differs from OLD, "entries": how many are remembered,
     "records": how many were written, "bytes": of content sent, "roots": [where was looked],
     "shell": {"state": "new" (an S record came) | "same" as in OLD | "none", "cwd": text, "why": text},
     "incomplete": in words what was left out, or "", "duration": seconds}

A checkpoint is remembered until the next has been told in full, and one before it: `since` may be either, so a
host that lost an answer loses nothing. `{"op": "checkpoint"}` never holds up commands; files that change while
they are read are read again, then said.

`{"op": "describe", "paths": [...], "content": bool, "below": bool, "timeout": seconds}` tells these paths as they
are now: entries (never base; `below`: of everything below them too), with `C` records if `content` is true (detail
of a file is null otherwise), and G for those that are not there. Outcome: `{"records": n, "incomplete": text}`.

`{"op": "restore", "id": ID, "since": S, "timeout": seconds}` with a body makes the files of checkpoint ID out of
those of S, the look just taken. All processes are killed first, and the shell is a new one. Kinds in its body, applied
in this order within a stream in which the host may mix them as it needs:

- `D` a JSON array of paths to delete, with everything below; a path that is not there is no error.
- `E` a JSON array of entries to make, or to replace when something is there (a directory that is there stays, with
  what is in it). Files only when they need no content: empty or all hole (detail `[]`), or `link` names another path,
  made before, of which it is to be another name.
- `F` one entry, of a file with content: the W records that follow hold it. What is there is replaced.
- `P` one entry of a file that is there: W and H records that follow change it in place, then it gets this size.
- `W` `>Q` offset, then raw bytes, at most 1 MiB, for the file of the F or P before. `H` `>QQ` offset and length: a hole.
- `M` a JSON array of entries that are there and only get other metadata (mode, owner, mtime, xattrs).
- `S` the state of the shell, as a checkpoint gave it.

Entries are whole, as above: `detail` is remembered as what ID holds, so that the next checkpoint can be incremental
(entries of base 1 are written like the others, but their digests are not taken as known to the host). Folders get
their mtime last, also those of which only the content was changed. Outcome:

    {"id": ID, "failed": [[path, reason], ...] at most 100, "failures": how many, "written": bytes,
     "shell": what could not be brought back, or "", "incomplete": text, "duration": seconds}

After a failure the next checkpoint since ID tells the paths that failed as they really are.
"""
