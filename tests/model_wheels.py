"""Wheels with parts of a model, in a folder that pip takes for its only index."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_sandbox_nb.model.local.table import ListedModel, WheelPart


def write_wheel(folder: Path, name: str, members: Mapping[str, bytes], version: str = "1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    module, about = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, data in members.items():
            wheel.writestr(member, data)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


def listed(name: str, pieces: Sequence[bytes], *, sha256: str = "") -> ListedModel:
    """A model of the table whose parts are these; `sha256` is another sum than theirs."""
    whole = b"".join(pieces)
    return ListedModel(
        name=name,
        title=f"Model {name}",
        file=f"{name}.gguf",
        parts=tuple(
            WheelPart(f"{name}-part{n}==1.0", f"{name}_part{n}/data.bin") for n in range(1, len(pieces) + 1)
        ),
        sha256=sha256 or hashlib.sha256(whole).hexdigest(),
        size=len(whole),
        memory=1,
        licence="Apache-2.0",
        origin="nobody",
    )


def write_parts_of(folder: Path, model: ListedModel, pieces: Sequence[bytes]) -> list[Path]:
    return [
        write_wheel(folder, part.distribution, {part.member: data})
        for part, data in zip(model.parts, pieces, strict=True)
    ]
