"""`llm-sandbox-nb doctor`: which isolations work here, why others do not, and what to do."""

from __future__ import annotations

import asyncio
import sys

from llm_sandbox_nb.cli.errors import ENDED_WELL, SANDBOX_ERROR

_WHAT_TO_DO = {
    "docker": "start an engine or point DOCKER_HOST to one; make the image: llm-sandbox-nb image build",
    "bubblewrap": "on Linux, install the package bubblewrap and allow unprivileged user namespaces",
}


def doctor_command() -> int:
    """Print one paragraph per isolation; exit code 0 when `auto` finds one."""
    problems = asyncio.run(_problems())
    for name, problem in problems.items():
        if problem:
            print(f"{name:<11} does not work here: {problem}\n{'':<11} what to do: {_WHAT_TO_DO[name]}")
        else:
            print(f"{name:<11} works")
    print(f"{'process':<11} works on Linux and isolates nothing; only taken when asked for by name")
    chosen = next((name for name, problem in problems.items() if not problem), None)
    if chosen:
        print(f"\nWithout --isolation, runs here use {chosen}.")
        return ENDED_WELL
    print("No isolation works here; see above what to do.", file=sys.stderr)
    return SANDBOX_ERROR


async def _problems() -> dict[str, str]:
    """Why each isolation does not work here, strongest first; empty when it does."""
    from llm_sandbox_nb.sandbox.detect import why_no_bubblewrap, why_no_docker

    no_docker, no_bubblewrap = await asyncio.gather(why_no_docker(None), why_no_bubblewrap())
    return {"docker": no_docker or "", "bubblewrap": no_bubblewrap or ""}
