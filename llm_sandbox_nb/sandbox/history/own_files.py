"""The files of a checkpoint without what others have changed in them."""

from __future__ import annotations

from collections.abc import Iterable

from llm_sandbox_nb.sandbox.history.manifest import Entry, Manifest, delta


def own_files(manifest: Manifest, others: Iterable[tuple[Manifest, Manifest]]) -> dict[str, Entry]:
    """The manifest as it would be if others had changed nothing.

    Args:
        others: pairs of manifests, oldest first, between which only others changed files. What has changed again
            since is left as it is.
    """
    own = dict(manifest)
    for before, after in reversed(list(others)):
        for path, entry in delta(before, after).items():
            if own.get(path) != entry:
                continue
            if path in before:
                own[path] = before[path]
            else:
                own.pop(path, None)
    return own
