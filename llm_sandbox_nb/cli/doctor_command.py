"""`llm-sandbox-nb doctor`: which isolations work here, why others do not, what to do; the view; malicious releases."""

from __future__ import annotations

import argparse
import asyncio
import sys

from llm_sandbox_nb.card.export import NO_VIEW, has_view
from llm_sandbox_nb.cli import ENDED_WELL, FAILED, SANDBOX_ERROR


def doctor_command(_: argparse.Namespace) -> int:
    """Print one paragraph per isolation; exit code 0 when `auto` finds one and no malicious release is installed."""
    from llm_sandbox_nb.model.litellm_model import compromised_version
    from llm_sandbox_nb.sandbox.isolations import ISOLATIONS

    problems = asyncio.run(_problems())
    for name, problem in problems.items():
        isolation = ISOLATIONS[name]
        print(f"{name:<11} {f'does not work here: {problem}' if problem else 'works'}")
        if problem:
            print(f"{'':<11} what to do: {isolation.install_hint}")
        if not isolation.automatic:
            what = "" if isolation.isolates else "it isolates nothing; "
            print(f"{'':<11} {what}it is only used when asked for by name")
    print(f"{'view':<11} {'works' if has_view() else NO_VIEW}")
    chosen = next((name for name in problems if ISOLATIONS[name].automatic and not problems[name]), None)
    if malicious := compromised_version():
        print(malicious, file=sys.stderr)
        return FAILED
    if chosen:
        print(f"\nWithout --isolation, runs here use {chosen}.")
        return ENDED_WELL
    print("No isolation works here; the lines above say what to do.", file=sys.stderr)
    return SANDBOX_ERROR


async def _problems() -> dict[str, str]:
    """Why each isolation does not work here, strongest first; empty when it does."""
    from llm_sandbox_nb.sandbox.isolations import ISOLATIONS
    from llm_sandbox_nb.sandbox.open import load_isolation

    answers = await asyncio.gather(*(load_isolation(name).why_unavailable(None) for name in ISOLATIONS))
    return dict(zip(ISOLATIONS, answers, strict=True))
