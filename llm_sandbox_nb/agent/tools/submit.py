"""`submit`: the model ends the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sandbox_nb.agent.tools.tool import CallView, Outcome, Tool, ToolContext


class Submit(Tool):
    """Ends the run."""

    name = "submit"
    description = (
        "End the task. Call it when the task is done and all results are saved; nothing can be done after it."
    )
    view = CallView(hide_observation=True)
    only_edits = True
    last_observation = "Submitted."

    def properties(self, command_timeout: float) -> dict[str, dict[str, Any]]:
        """See `Tool.properties`."""
        return {}

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Outcome:
        """See `Tool.execute`."""
        return Outcome(self.last_observation)
