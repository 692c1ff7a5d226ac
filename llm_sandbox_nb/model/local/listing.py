"""Lists the local models that have a name, with what each needs and whether it is here, and fetches one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from llm_sandbox_nb.formatting import format_size
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.local.gguf import read_header
from llm_sandbox_nb.model.local.loading_progress import show
from llm_sandbox_nb.model.local.machine import free_memory
from llm_sandbox_nb.model.local.source import PREFIX, ListedSource, find_source, missing_extra
from llm_sandbox_nb.model.local.store import Stop, known_sum, models_folder
from llm_sandbox_nb.model.local.table import MODELS


def models_json() -> list[dict[str, Any]]:
    """The models of the table, for a program."""
    return [
        {
            "name": f"{PREFIX}{model.name}",
            "title": model.title,
            "size": model.size,
            "memory": model.memory,
            "licence": model.licence,
            "source": model.source,
            "origin": model.origin,
            "sha256": model.sha256,
            "fetched": ListedSource(model).is_here(),
        }
        for model in MODELS.values()
    ]


def models_text() -> str:
    """The models of the table, and how to use them."""
    lines = [f"{'name':<26} {'file':>9} {'memory':>9}  {'licence':<11} {'fetched':<8} model"]
    for one in models_json():
        here = "yes" if one["fetched"] else "no"
        sizes = f"{format_size(one['size']):>9} {format_size(one['memory']):>9}"
        lines.append(f"{one['name']:<26} {sizes}  {one['licence']:<11} {here:<8} {one['title']}")
        lines.append(f"{'':<26} {one['source']}, sha256 {one['sha256']}")
    use = "Use one with `--model NAME`; it is fetched when it is first used, or with `models --fetch NAME`."
    lines += ["", missing_extra() or use]
    lines.append(f"Any other: {PREFIX}PATH.gguf or {PREFIX}hf:OWNER/REPOSITORY/FILE.gguf.")
    lines.append(f"Fetched models are in {models_folder()}.")
    return "\n".join(lines)


def fetch_model(name: str) -> Path:
    """Fetch the file of `local/NAME`, check it, and give its path.

    Raises:
        ModelError: it cannot be fetched, or is no model's file.
    """
    source = find_source(name.removeprefix(PREFIX))
    if problem := missing_extra():
        raise ModelError(problem, kind="setup")
    stop = Stop()
    try:
        source.check()
        path = source.fetch(stop)
        read_header(path)
        known_sum(path, path.name, stop)
    finally:
        show("")
    return path


def local_models() -> str:
    """Whether local models can run here, and with what memory; for `doctor`."""
    if problem := missing_extra():
        return problem
    engine = importlib.metadata.version("xllamacpp")
    return f"models work: xllamacpp {engine}, {format_size(free_memory())} of memory are free"
