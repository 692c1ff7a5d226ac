"""What `%config SandboxMagics` and `ipython_config.py` set: the defaults of cells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Int, Unicode, default
from traitlets.config import Configurable

from llm_sandbox_nb.notebook.caps import Caps
from llm_sandbox_nb.sandbox.contract import Limits

ISOLATION_VARIABLE = "LLM_SANDBOX_ISOLATION"
MODEL_VARIABLE = "LLM_SANDBOX_MODEL"


class SandboxSettings(Configurable):
    """Defaults; options of a cell come first. An empty text leaves it to the sandbox or the model."""

    model = Unicode(help="Model of cells without -m, as LiteLLM names it.").tag(config=True)
    api_base = Unicode(help="Address of the model's server, e.g. http://localhost:8000/v1.").tag(config=True)
    api_key_env = Unicode(help="Environment variable that holds the model's key.").tag(config=True)
    model_settings = Dict(
        help="temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, timeout, extra_body."
    ).tag(config=True)
    prompt_config = Unicode(help="YAML file with the prompts.").tag(config=True)

    isolation = Unicode("auto", help="auto, docker, bubblewrap, or process, which protects nothing.").tag(
        config=True
    )
    profile = Unicode(help="standard (root inside) or strict (no root, no network).").tag(config=True)
    image = Unicode(help="Container image.").tag(config=True)
    network = Unicode(help="none or open.").tag(config=True)
    memory_mb = Int(None, allow_none=True, help="Memory of a sandbox in MB.").tag(config=True)
    pids = Int(None, allow_none=True, help="Most processes of a sandbox.").tag(config=True)
    cpus = Float(None, allow_none=True, help="Processors of a sandbox.").tag(config=True)
    ca_bundle = Unicode(help="PEM file that programs in the sandbox shall trust.").tag(config=True)
    index_url = Unicode(help="Python package index for the sandbox.").tag(config=True)
    proxy = Unicode(help="HTTP proxy for the sandbox.").tag(config=True)
    use_server = Bool(
        True,
        help="Let the Jupyter server keep the sandbox, where it has the extension; else this kernel does.",
    ).tag(config=True)

    steps = Int(100, help="Most steps of a run.").tag(config=True)
    tokens = Int(65_536, allow_none=True, help="Most tokens of the conversation.").tag(config=True)
    budget = Float(None, allow_none=True, help="Most US dollars of a run.").tag(config=True)
    time = Float(None, allow_none=True, help="Longest time of a run in seconds.").tag(config=True)

    output_dir = Unicode("sandbox-runs", help="Folder for the records and files of runs.").tag(config=True)
    dataframe_format: Any = Enum(
        ["csv", "parquet"],
        "csv",
        help="What a DataFrame given with -i becomes; csv can be read by any sandbox.",
    ).tag(config=True)
    embed_file_bytes = Int(Caps.artifact, help="Largest file kept in the notebook.").tag(config=True)
    embed_run_bytes = Int(Caps.run, help="Bytes of all files of one run kept in the notebook.").tag(
        config=True
    )
    live_panel: Any = Enum(
        ["auto", "always", "never"],
        "auto",
        help="Show a run as a widget while it goes on, where no Jupyter server with the extension can.",
    ).tag(config=True)
    update_interval = Float(0.25, help="Seconds between updates of a cell's output.").tag(config=True)

    @default("isolation")
    def _isolation(self) -> str:
        return os.environ.get(ISOLATION_VARIABLE) or "auto"

    @default("model")
    def _model(self) -> str:
        return os.environ.get(MODEL_VARIABLE) or ""

    def limits(self) -> Limits | None:
        """The resources asked for; None when nothing was set."""
        memory = self.memory_mb * 1024**2 if self.memory_mb is not None else None
        wanted: Mapping[str, float | None] = {"memory_bytes": memory, "pids": self.pids, "cpus": self.cpus}
        given = {name: value for name, value in wanted.items() if value is not None}
        return Limits(**given) if given else None  # type: ignore[arg-type]

    def caps(self) -> Caps:
        """The bounds of the saved card."""
        return Caps(artifact=self.embed_file_bytes, run=self.embed_run_bytes)
