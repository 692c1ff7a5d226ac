"""The command `models`: a list of the local models in the table, and fetching of a model."""

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
    """Return the models of the table as JSON values, which a program can read."""
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
    """Format a table of the models, with instructions."""
    lines = [f"{'name':<26} {'file':>9} {'memory':>9}  {'licence':<11} {'fetched':<8} model"]
    for model in models_json():
        here = "yes" if model["fetched"] else "no"
        sizes = f"{format_size(model['size']):>9} {format_size(model['memory']):>9}"
        lines.append(f"{model['name']:<26} {sizes}  {model['licence']:<11} {here:<8} {model['title']}")
        lines.append(f"{'':<26} {model['source']}, sha256 {model['sha256']}")
    use = "Use one with `--model NAME`; it is fetched when it is first used, or with `models --fetch NAME`."
    lines += ["", missing_extra() or use]
    lines.append(f"For any other model: {PREFIX}PATH.gguf or {PREFIX}hf:OWNER/REPOSITORY/FILE.gguf.")
    lines.append(f"Fetched models are in {models_folder()}.")
    return "\n".join(lines)


def fetch_model(name: str) -> Path:
    """Fetch and check the file of `local/NAME`, and return its path.

    Raises:
        ModelError: if the file cannot be fetched, or is not a model.
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
    """Return a text for the command `doctor`: the engine and the free memory, or the package that is missing."""
    if problem := missing_extra():
        return problem
    engine = importlib.metadata.version("xllamacpp")
    return f"models work: xllamacpp {engine}, {format_size(free_memory())} of memory are free"
