"""Finding a path in a manifest as the kernel would have found it: links are followed."""

from __future__ import annotations

import posixpath

from llm_sandbox_nb.sandbox.history.entry import LINK, Manifest

_LINKS_MOST = 40


def resolve(manifest: Manifest, path: str) -> str:
    """The path that an absolute path leads to. What lies in the image's own folders is not followed further.

    Raises:
        FileNotFoundError: there was nothing.
        NotADirectoryError: a part of it was no folder.
        OSError: links led in a circle.
    """
    todo = [name for name in path.split("/") if name]
    todo.reverse()
    here, links = "/", 0
    while todo:
        name = todo.pop()
        above = manifest.get(here)
        if name == "..":
            here = posixpath.dirname(here)
            continue
        here = posixpath.join(here, name)
        entry = manifest.get(here)
        if entry is None and above is not None:
            if above.base and above.type == "d":
                return posixpath.normpath(posixpath.join(here, *reversed(todo)))
            if above.type != "d":
                raise NotADirectoryError(20, "Not a directory", path)
            raise FileNotFoundError(2, "No such file or directory", path)
        if entry is not None and entry.type == LINK and not entry.base:
            links += 1
            if links > _LINKS_MOST:
                raise OSError(40, "Too many levels of symbolic links", path)
            here = "/" if entry.target.startswith("/") else posixpath.dirname(here)
            todo += [part for part in reversed(entry.target.split("/")) if part not in ("", ".")]
    if here not in manifest:
        raise FileNotFoundError(2, "No such file or directory", path)
    return here
