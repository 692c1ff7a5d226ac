"""Run by an interpreter with SWE-ReX: a benchmark in its Docker deployment; the answers go to answers.json.

The image has SWE-ReX's server. A thread for each worker, because the start and the stop of a deployment block the
event loop.

python swerex_benchmark.py IMAGE URL TASKS WORKERS
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import Command, ReadFileRequest
from swerex.runtime.remote import RemoteRuntime

FOLDER = "/testbed"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [
    {"type": "function", "function": {"name": "execute_bash", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "submit"}},
]


async def solve(image: str, url: str) -> str:
    """Return the answer, or nothing if an error ended the task."""
    deployment = DockerDeployment(image=image, pull="never")
    try:
        await deployment.start()
        return await answer(deployment.runtime, url)
    except Exception as error:  # noqa: BLE001
        print(repr(error), file=sys.stderr)
        return ""
    finally:
        await deployment.stop()


async def answer(runtime: RemoteRuntime, url: str) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You work in {FOLDER}."},
        {"role": "user", "content": "Write."},
    ]
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        while True:
            asked = {"model": "scripted", "messages": messages, "tools": TOOLS}
            async with session.post(f"{url}/chat/completions", json=asked) as response:
                message = (await response.json())["choices"][0]["message"]
            (call,) = message["tool_calls"]
            if call["function"]["name"] == "submit":
                return (await runtime.read_file(ReadFileRequest(path=f"{FOLDER}/answer.txt"))).content
            command = json.loads(call["function"]["arguments"])["command"]
            done = await runtime.execute(Command(command=command, shell=True, cwd=FOLDER))
            content = done.stdout + done.stderr
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": content}]


def main() -> None:
    image, url, tasks, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(lambda _: asyncio.run(solve(image, url)), range(tasks)))
    Path("answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
