"""The files of a conversation that came without them: its calls are carried out again."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from llm_sandbox_nb.agent.inputs import InputFiles
from llm_sandbox_nb.agent.recorded import play
from llm_sandbox_nb.agent.replaying import report

if TYPE_CHECKING:
    from llm_sandbox_nb.agent.run import Run


async def rebuild(run: Run, *, inputs: InputFiles = None, output_dir: Any = None, **options: Any) -> Run:
    """See `Run.rebuild`. What came out otherwise than recorded is in the new run's `rebuilt`."""
    new = await play(run, "rebuilt_from", inputs, output_dir, options)
    new.rebuilt = await asyncio.to_thread(report, run, new, list[re.Pattern[str]](), ())
    new.place.job = None
    return new
