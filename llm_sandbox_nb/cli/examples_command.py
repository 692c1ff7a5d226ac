"""`llm-sandbox-nb examples`: lists the examples, or runs one and checks its result."""

from __future__ import annotations

import argparse
import sys

from llm_sandbox_nb.cli import ENDED_WELL, FAILED
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.cli.run_command import run_task
from llm_sandbox_nb.examples.checks import read_files
from llm_sandbox_nb.examples.gallery import EXAMPLES
from llm_sandbox_nb.options.parser import did_you_mean
from llm_sandbox_nb.options.table import QUERY, UsageError
from llm_sandbox_nb.trajectory.run_folder import FILES


def examples_command(arguments: argparse.Namespace) -> int:
    """List the examples; or run one, with the scripted model unless another is named, and check its result.

    Raises:
        UsageError: there is no such example, or an option is wrong; nothing was started.
    """
    flags = vars(arguments)
    name = flags.pop("name")
    if name is None:
        width = max(map(len, EXAMPLES))
        print("\n".join(f"{one.name:<{width}}  {one.title}" for one in EXAMPLES.values()))
        return ENDED_WELL
    example = EXAMPLES.get(name)
    if example is None:
        raise UsageError(f"There is no example {name}{did_you_mean(name, list(EXAMPLES))}")
    flags |= {QUERY.name: example.task, "input_dir": example.inputs and str(example.inputs)}
    flags["model"] = flags["model"] or example.model
    code, run = run_task(flags)
    if run is None or code:
        return code
    problem = example.check(read_files(run.folder / FILES))
    print(
        harmless(f"Check      {problem or 'the result is right'}"), file=sys.stderr if problem else sys.stdout
    )
    return FAILED if problem else ENDED_WELL
