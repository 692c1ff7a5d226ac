"""Prepared sandbox of a run, with all objects that are needed to execute calls."""

from __future__ import annotations

from dataclasses import dataclass

from llm_sandbox_nb.agent.artifacts import AnswerFiles, Collector
from llm_sandbox_nb.agent.checkpoints import Checkpoints
from llm_sandbox_nb.agent.run_options import RunOptions
from llm_sandbox_nb.sandbox.contract import Sandbox


@dataclass
class Workspace:
    """Prepared sandbox with its collector of artifacts and its checkpoints."""

    box: Sandbox
    collector: Collector
    checkpoints: Checkpoints
    options: RunOptions
    answers: AnswerFiles
