"""Run by the interpreter of mini-swe-agent: one row from standard input, what came of it as the last line of output.

Its text protocol is used, with the prompts that it ships for that. The container is one of its own environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_CONFIGURED": "true",
}

import yaml
from counted_requests import counted, report


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    import minisweagent  # type: ignore[import-not-found, unused-ignore]
    from minisweagent.agents.default import DefaultAgent  # type: ignore[import-not-found, unused-ignore]
    from minisweagent.environments.docker import DockerEnvironment  # type: ignore[import-not-found, unused-ignore]
    from minisweagent.models.litellm_textbased_model import (  # type: ignore[import-not-found, unused-ignore]
        LitellmTextbasedModel,
    )

    counted(given)
    folder = Path(given["folder"])
    config = yaml.safe_load((Path(minisweagent.__file__).parent / "config/mini_textbased.yaml").read_text())
    model = LitellmTextbasedModel(
        **config["model"]
        | {"model_name": given["model"], "cost_tracking": "ignore_errors"}
        | {
            "model_kwargs": {
                **config["model"]["model_kwargs"],
                "api_base": given["api_base"],
                "api_key": given["api_key"],
            }
        }
    )
    started = time.monotonic()
    box = DockerEnvironment(
        image=given["image"],
        cwd="/testbed",
        timeout=60,
        run_args=["--rm", "--network", "none"],
        **config["environment"],
    )
    try:
        box.execute({"command": "mkdir -p input output"})
        subprocess.run(
            ["docker", "cp", f"{given['inputs']}/.", f"{box.container_id}:/testbed/input"], check=True
        )
        agent_keys = {key: value for key, value in config["agent"].items() if key != "mode"}
        agent = DefaultAgent(model, box, **agent_keys | {"step_limit": given["steps"], "cost_limit": 0})
        ended = agent.run(given["problem"] + given["where"])
        copied = folder / "copied"
        copied.mkdir(parents=True, exist_ok=True)
        subprocess.run(["docker", "cp", f"{box.container_id}:/testbed/output/.", copied], check=False)
    finally:
        subprocess.run(["docker", "rm", "-f", box.container_id], check=False, stdout=subprocess.DEVNULL)
        box.container_id = None
    replies = [one for one in agent.messages if one["role"] == "assistant"]
    actions = [action for one in replies for action in (one.get("extra") or {}).get("actions") or ()]
    report(
        text=ended.get("submission") or (replies[-1]["content"] if replies else ""),
        submitted=ended.get("exit_status") == "Submitted",
        calls=[{"tool": "execute_bash", "arguments": {"command": action["command"]}} for action in actions],
        without_call=agent.n_calls - len(actions),
        wall=time.monotonic() - started,
    )


if __name__ == "__main__":
    main()
