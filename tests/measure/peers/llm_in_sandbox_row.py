"""Run by the interpreter of llm-in-sandbox: one row from standard input, what came of it as the last line of output."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from counted_requests import counted, report
from llm_in_sandbox import Agent, AgentArgs, DockerRuntime  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    import llm_in_sandbox

    counted(given)
    folder = Path(given["folder"])
    config = yaml.safe_load((Path(llm_in_sandbox.__file__).parent / "config/general.yaml").read_text())
    places = {key: config[key] for key in ("working_dir", "input_dir", "output_dir")}

    def filled(text: str) -> str:
        for key, value in places.items():
            text = text.replace(f"{{{key}}}", value)
        return text

    started = time.monotonic()
    runtime = DockerRuntime(given["image"], logger=False, network_mode="none")
    try:
        runtime.run(f"mkdir -p {places['input_dir']} {places['output_dir']}")
        runtime.copy_dir_to_container(given["inputs"], places["input_dir"])
        args = AgentArgs(
            filled(config["system_prompt"]),
            filled(config["instance_prompt"]),
            given["model"],
            given["api_base"],
            quiet=True,
        )
        run = Agent(args).run(
            runtime,
            given["problem"],
            max_steps=given["steps"],
            max_token_limit=given["tokens"],
            max_tokens_per_call=given["reply_tokens"],
            temperature=given["temperature"],
        )
        runtime.copy_from_container(places["output_dir"], str(folder / "copied"))
    finally:
        runtime.close()
    steps = [vars(step) for step in run.steps]
    calls = [
        {"tool": step["action"]["function"], "arguments": step["action"]["parameters"] or {}}
        for step in steps
    ]
    report(
        text=steps[-1]["thought"] if steps else "",
        submitted=bool(calls) and calls[-1]["tool"] == "submit",
        calls=[call for call in calls if call["tool"]],
        without_call=sum(not call["tool"] for call in calls),
        wall=time.monotonic() - started,
    )


if __name__ == "__main__":
    main()
