"""The paper's package and this one in the same situations, and what each did, as points that can be compared.

Both run as their users run them, from the shell, in Docker with our image; the server plays a script and keeps what it
was sent. A point has an id, `situation/.../fact`, and a value on each side. What the two mean to do differently stands
in docs/original-differences.toml.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_scripts import SUBMIT, bash, edit, raw, script_text, turn
from scripted_faults import UNAUTHORIZED, Fault
from scripted_server import RecordedRequest, ScriptedServer

from llm_sandbox_nb.benchmark.scorers import score_row
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE

DIFFERENCES = Path(__file__).parents[2] / "docs" / "original-differences.toml"
COUNTER = re.compile(
    r"(?:\n\n\[Steps remaining: (?P<ours>\d+)\]|\nSteps Remaining: (?P<theirs>\d+)).*\Z", re.DOTALL
)
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
TASKS = ("math", "physics", "chem", "biomed", "long_context", "instruct_follow", "instruct_pretrain")
MISSING = "(missing)"


@dataclass(frozen=True)
class Point:
    """One fact on both sides."""

    id: str
    theirs: Any
    ours: Any

    @property
    def same(self) -> bool:
        return bool(self.theirs == self.ours)

    def __str__(self) -> str:
        return f"{self.id}: {str(self.theirs)[:150]!r} there, {str(self.ours)[:150]!r} here"


def points_of(situation: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Point]:
    return [
        Point(f"{situation}/{name}", theirs.get(name, MISSING), ours.get(name, MISSING))
        for name in dict.fromkeys([*theirs, *ours])
    ]


@dataclass(frozen=True)
class Difference:
    """What the two do differently, and why: the points are patterns of their ids."""

    points: tuple[str, ...]
    part: str
    about: str
    there: str
    here: str
    why: str

    def has(self, point: Point) -> bool:
        return any(fnmatch.fnmatchcase(point.id, pattern) for pattern in self.points)


def stated_differences() -> list[Difference]:
    found = tomllib.loads(DIFFERENCES.read_text("utf-8"))["difference"]
    return [Difference(**{**one, "points": tuple(one["points"])}) for one in found]


def problems(points: Sequence[Point], stated: Iterable[Difference]) -> list[str]:
    """Differences that nobody states, and statements that are not so (any more)."""
    stated, different = list(stated), [point for point in points if not point.same]
    silent = [f"not stated: {point}" for point in different if not any(one.has(point) for one in stated)]
    stale = [
        f"stated, and not so: {pattern} ({one.about})"
        for one in stated
        for pattern in one.points
        if not any(fnmatch.fnmatchcase(point.id, pattern) for point in different)
    ]
    return silent + stale


@dataclass
class Played:
    """What a command line did."""

    requests: list[RecordedRequest]
    code: int
    folder: Path
    output: str = ""

    @property
    def first(self) -> dict[str, Any]:
        return self.requests[0].body


@dataclass
class Beside:
    """Plays situations. `python` is the interpreter that has the paper's package."""

    python: Path
    folder: Path
    points: list[Point] = field(default_factory=list)

    def add(self, situation: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        self.points += points_of(situation, theirs, ours)

    def both(
        self, name: str, script: str, words: Sequence[str], *, ours: Sequence[str] = (), **options: Any
    ) -> tuple[Played, Played]:
        """The same words with both programs, at the same time; `ours` are more words for this package."""
        sides = {
            "theirs": ([str(self.python.parent / "llm-in-sandbox"), *words], {}),
            "ours": ([sys.executable, "-m", "llm_sandbox_nb", *words, *ours], self.environment),
        }
        with ThreadPoolExecutor(2) as pool:
            found = [
                pool.submit(self.play, self.folder / name / side, script, command, environment, **options)
                for side, (command, environment) in sides.items()
            ]
            return found[0].result(), found[1].result()

    @property
    def environment(self) -> dict[str, str]:
        """Where this package finds the prompts of the other one: alone, without what that one needs."""
        alone = self.folder / "original"
        if not alone.exists():
            alone.mkdir(parents=True)
            (site,) = self.python.parents[1].glob("lib/python3.*/site-packages")
            for part in ("llm_in_sandbox", *(one.name for one in site.glob("llm_in_sandbox-*.dist-info"))):
                (alone / part).symlink_to(site / part)
        return {"LLM_SANDBOX_ISOLATION": "docker", "PYTHONPATH": str(alone)}

    def play(
        self,
        folder: Path,
        script: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        faults: Sequence[Fault] = (),
        named: bool = True,
        files: Mapping[str, str] | None = None,
    ) -> Played:
        folder.mkdir(parents=True, exist_ok=True)
        with ScriptedServer(script, strict=False) as server:
            for name, text in (files or {}).items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text.replace("URL", server.url))
            server.fail_next(*faults)
            words = [word.replace("URL", server.url) for word in command]
            if named:
                words += ["--llm_name", "scripted", "--llm_base_url", server.url, "--api_key", "key"]
            whole = {**os.environ, **OFFLINE, **environment, "HOME": str(folder)}
            for name in ("LLM_BASE_URL", "LLM_NAME", "LLM_API_KEY"):
                whole.pop(name, None)
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=600, env=whole, errors="replace"
            )
            return Played(list(server.requests), done.returncode, folder, done.stdout + done.stderr)


# --- what is read out of a run ---


def request_facts(body: Mapping[str, Any]) -> dict[str, Any]:
    found = {f"field/{name}": value for name, value in body.items() if name not in ("messages", "tools")}
    for message in body["messages"]:
        text = message["content"]
        counter = COUNTER.search(text)
        found[f"text/{message['role']}"] = COUNTER.sub("", text) if counter else text
        if counter:
            found["counter/steps"] = int(counter["ours"] or counter["theirs"])
            found["counter/form"] = text[counter.start() :]
    for tool in body.get("tools", ()):
        function = tool["function"]
        place, parameters = f"tool/{function['name']}", function["parameters"]
        found[f"{place}/description"] = function["description"]
        found[f"{place}/required"] = sorted(parameters.get("required", ()))
        found[f"{place}/parameters"] = sorted(parameters["properties"])
        for name, schema in parameters["properties"].items():
            found[f"{place}/parameter/{name}/type"] = schema.get("type")
            found[f"{place}/parameter/{name}/more"] = {
                key: value for key, value in schema.items() if key not in ("type", "description")
            }
            found[f"{place}/parameter/{name}/description"] = schema.get("description")
    return found


def answers(requests: Sequence[RecordedRequest]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    for message in requests[-1].messages:
        if message["role"] == "assistant":
            found.append([])
        elif found:
            found[-1].append(message)
    return found


_EXIT = re.compile(r"Exit code: (?:Error: Exit code )?(-?\d+)")
_STREAM = re.compile(r"\\?\[(stdout|stderr)\]\n", re.IGNORECASE)
_NUMBERED = re.compile(r"^ *(\d+)\t(.*)$", re.MULTILINE)
_REFUSED = re.compile(r"(?:Execution output of \\?\[\w+\]:\n)?\s*(?:error\b|unknown )", re.IGNORECASE)


def result_facts(kind: str, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a model reads of a call, without the form in which it stands."""
    if not messages:
        return {"results": 0}
    found: dict[str, Any] = {
        "results": sum(message["role"] == "tool" for message in messages),
        "user messages": sum(message["role"] == "user" for message in messages),
    }
    text = COUNTER.sub("", str(messages[0]["content"]))
    if kind == "bash":
        exit_code = _EXIT.match(text)
        parts = _STREAM.split(text)
        streams = dict(zip((name.lower() for name in parts[1::2]), parts[2::2], strict=True))
        found["exit code"] = int(exit_code[1]) if exit_code else None
        found |= {name: streams.get(name, "").strip("\n") for name in ("stdout", "stderr")}
    elif kind == "edit":
        found["refused"] = bool(_REFUSED.match(text))
        found["lines"] = [(int(number), line) for number, line in _NUMBERED.findall(text)]
    return found


def record_facts(played: Played) -> dict[str, Any]:
    (path,) = played.folder.glob("out/**/trajectory.json") or [None]
    if path is None:
        return {"trajectory.json": False}
    record = json.loads(path.read_text())
    first, files = record["steps"][0] if record["steps"] else {}, path.parent / "files"
    found: dict[str, Any] = {
        "trajectory.json": True,
        "keys": sorted(record),
        "step keys": sorted(first),
        "action keys": sorted(first.get("action", {})),
        "step metadata keys": sorted(first.get("metadata", {})),
        "metadata keys": sorted(record["metadata"]),
        "total steps": record["metadata"]["total_steps"],
        "problem": record["problem_statement"],
        "functions": [step["action"]["function"] for step in record["steps"]],
        "parameters": [step["action"]["parameters"] for step in record["steps"]],
        "thoughts": [step["thought"] for step in record["steps"]],
        "reasoning": [step["reasoning_content"] for step in record["steps"]],
        "step numbers": [step["metadata"]["step"] for step in record["steps"]],
        "counter in observations": any(
            "teps remaining" in step["observation"].lower() for step in record["steps"]
        ),
        "folder name": bool(re.fullmatch(r"\d{8}_\d{6}", path.parent.name)),
    }
    for one in sorted(files.rglob("*")) if files.is_dir() else ():
        kind = "link" if one.is_symlink() else "folder" if one.is_dir() else one.read_bytes().hex()
        found[f"file/{one.relative_to(files).as_posix()}"] = kind
    return found


def ending_facts(played: Played) -> dict[str, Any]:
    return {"requests": len(played.requests), "exit code": played.code}


# --- the situations ---

PY = "def f():\n    return 1\n\n\nprint(f())\n"
TOOL_CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("two streams", "bash", bash("echo out; echo err >&2")),
    ("an exit code", "bash", bash("(exit 3)")),
    ("no output", "bash", bash("true")),
    ("a missing program", "bash", bash("nosuchprogram 2>/dev/null")),
    ("change of folder", "bash", bash("cd /tmp && pwd")),
    ("folder of the next call", "bash", bash("pwd")),
    ("setting of a variable", "bash", bash("export A=1; B=2; echo set")),
    ("variable of the next call", "bash", bash('echo "[$A$B]"')),
    ("reading of stdin", "bash", bash("cat; echo read")),
    ("input files", "bash", bash("cd /testbed/input && find . -type f | sort | xargs md5sum; cd /testbed")),
    ("working folder", "bash", bash("ls -A /testbed | sort")),
    ("user", "bash", bash("id -un")),
    ("python", "bash", bash("python -c 'import numpy, sympy, scipy, matplotlib; print(1)'")),
    ("80 lines", "bash", bash("seq 1 80")),
    ("200 lines", "bash", bash("seq 1 200")),
    ("200 lines of stderr", "bash", bash("seq 1 200 >&2")),
    ("a long line", "bash", bash("head -c 30000 /dev/zero | tr '\\0' x")),
    ("colours", "bash", bash("printf '\\033[31mred\\033[0m\\n'")),
    ("a carriage return", "bash", bash("printf 'a\\rb\\n'")),
    ("other letters", "bash", bash("printf 'é 漢 😀\\n'")),
    ("bytes that are no text", "bash", bash("printf 'a\\377b\\n'")),
    ("a tab", "bash", bash("printf 'a\\tb\\n'")),
    ("an exit code of 124", "bash", bash("(exit 124)")),
    ("a job in the background", "bash", bash("(sleep 3) >/dev/null 2>&1 & echo started")),
    ("several lines", "bash", bash("for i in 1 2; do\n  echo $i\ndone")),
    ("quotes", "bash", bash("echo \"it's\" '\"quoted\"' \\$HOME")),
    ("create", "edit", edit("create", "/testbed/a.py", file_text=PY)),
    ("create, the file", "bash", bash("base64 -w0 a.py")),
    ("create again", "edit", edit("create", "/testbed/a.py", file_text=PY + "# 2\n")),
    ("create again, the file", "bash", bash("base64 -w0 a.py")),
    ("create in a new folder", "edit", edit("create", "/testbed/new/deep/b.py", file_text="x = 1\n")),
    ("create without a last line end", "edit", edit("create", "/testbed/c.py", file_text="x = 1")),
    ("create without a last line end, the file", "bash", bash("base64 -w0 c.py")),
    ("create with tabs", "edit", edit("create", "/testbed/t.py", file_text="if 1:\n\tx = '\t'\n")),
    ("create with tabs, the file", "bash", bash("base64 -w0 t.py")),
    ("create with quotes", "edit", edit("create", "/testbed/q.py", file_text="print('it\\'s', \"$HOME\", `x`)\n")),
    ("create with quotes, the file", "bash", bash("base64 -w0 q.py")),
    ("create of -n", "edit", edit("create", "/testbed/n.py", file_text="-n")),
    ("create of -n, the file", "bash", bash("base64 -w0 n.py")),
    ("create with a space in the name", "edit", edit("create", "/testbed/a b.py", file_text="x\n")),
    ("create with a space in the name, the file", "bash", bash("base64 -w0 'a b.py'")),
    ("a known file", "bash", bash(f"printf '%s' '{PY}# 2\n' > a.py; base64 -w0 a.py")),
    ("view", "edit", edit("view", "/testbed/a.py")),
    ("view of a range", "edit", edit("view", "/testbed/a.py", view_range=[2, 3])),
    ("view to the end", "edit", edit("view", "/testbed/a.py", view_range=[4, -1])),
    ("view past the end", "edit", edit("view", "/testbed/a.py", view_range=[1, 90])),
    ("view from past the end", "edit", edit("view", "/testbed/a.py", view_range=[90, 95])),
    ("view backwards", "edit", edit("view", "/testbed/a.py", view_range=[3, 1])),
    ("view of a missing file", "edit", edit("view", "/testbed/nothing.py")),
    ("view of a text", "edit", edit("view", "/testbed/input/note.txt")),
    ("view of a folder", "edit", edit("view", "/testbed/new")),
    ("making of a long file", "bash", bash("seq 1 4000 > /testbed/long.py")),
    ("view of a long file", "edit", edit("view", "/testbed/long.py")),
    ("str_replace", "edit", edit("str_replace", "/testbed/a.py", old_str="return 1", new_str="return 2")),
    ("str_replace, the file", "bash", bash("base64 -w0 a.py")),
    ("str_replace of nothing", "edit", edit("str_replace", "/testbed/a.py", old_str="no such", new_str="x")),
    ("str_replace of several", "edit", edit("str_replace", "/testbed/a.py", old_str="f()", new_str="g()")),
    ("str_replace without new_str", "edit", edit("str_replace", "/testbed/a.py", old_str="# 2")),
    ("str_replace without new_str, the file", "bash", bash("base64 -w0 a.py")),
    ("str_replace of a missing file", "edit", edit("str_replace", "/testbed/no.py", old_str="a", new_str="b")),
    ("str_replace beside tabs", "edit", edit("str_replace", "/testbed/t.py", old_str="if 1", new_str="if 2")),
    ("str_replace beside tabs, the file", "bash", bash("base64 -w0 t.py")),
    ("insert", "edit", edit("insert", "/testbed/a.py", insert_line=1, new_str="    # in")),
    ("insert, the file", "bash", bash("base64 -w0 a.py")),
    ("insert at the top", "edit", edit("insert", "/testbed/c.py", insert_line=0, new_str="# top")),
    ("insert at the top, the file", "bash", bash("base64 -w0 c.py")),
    ("insert past the end", "edit", edit("insert", "/testbed/c.py", insert_line=99, new_str="x")),
    ("insert into a missing file", "edit", edit("insert", "/testbed/none.py", insert_line=0, new_str="x")),
    ("insert into a missing file, the file", "bash", bash("test -e none.py && echo made")),
    ("an unknown command of the editor", "edit", edit("undo_edit", "/testbed/a.py")),
    ("the editor without a path", "edit", {"tool": "str_replace_editor", "arguments": {"command": "view"}}),
    ("a call without a command", "edit", {"tool": "execute_bash", "arguments": {}}),
    ("an unknown tool", "edit", {"tool": "browse", "arguments": {"url": "x"}}),
)  # fmt: skip
"""A name, the kind of its result, and the call: one in each turn."""
OUTPUTS = (
    "mkdir -p /testbed/output/sub /testbed/output/empty && cd /testbed/output && echo 3 > answer.txt && "
    "printf '\\000\\001' > sub/b.bin && echo h > .hidden && ln -s answer.txt link && cd /testbed"
)
INPUT = {"in/note.txt": "A note.\n", "in/sub/data.csv": "a,b\n1,2\n"}
THINKS = "I think about it."


def run_words(*more: str) -> list[str]:
    return ["run", "-q", "How many r's are in {strawberry}?", "-d", DEFAULT_IMAGE, "-o", "out", *more]


def tools_situation(beside: Beside) -> None:
    """One long run: its first request, each call, and what is on disk afterwards."""
    turns = [turn(call) for _, _, call in TOOL_CALLS]
    turns[0] |= {"text": "I look.", "reasoning": THINKS}
    extra = [turn(bash(OUTPUTS)), SUBMIT]
    words = run_words("-i", "in", "-t", "0.7", "-e", '{"chat_template_kwargs": {"thinking": "true"}}')
    words.append("--save_litellm_response")
    theirs, ours = beside.both(
        "tools", script_text(*turns, *extra), words, ours=["--prompts", "original"], files=INPUT
    )
    beside.add("first request", request_facts(theirs.first), request_facts(ours.first))
    sides = answers(theirs.requests), answers(ours.requests)
    for place, (name, kind, _) in enumerate(TOOL_CALLS):
        facts = [result_facts(kind, side[place]) for side in sides]
        beside.add(f"call/{name}", *facts)
    beside.add("run", ending_facts(theirs), ending_facts(ours))
    beside.add("record", record_facts(theirs), record_facts(ours))
    kept = [
        {
            "request and reply files": sorted(
                {re.sub(r"\d+", "N", one.name) for one in side.folder.rglob("re*_001.json")}
            )
        }
        for side in (theirs, ours)
    ]
    beside.add("record", *kept)
    keys = [sorted(side.requests[-1].messages[2]) for side in (theirs, ours)]
    beside.add("history", {"keys of a reply": keys[0]}, {"keys of a reply": keys[1]})
    texts = [COUNTER.search(side.requests[-1].messages[1]["content"]) is not None for side in (theirs, ours)]
    beside.add("history", {"task keeps its counter": texts[0]}, {"task keeps its counter": texts[1]})


def odd_replies_situation(beside: Beside) -> None:
    """Replies that are not one well-formed call."""
    odd = {
        "arguments that are not JSON": turn(raw("execute_bash", '{"command": ls')),
        "two calls in one reply": turn(bash("echo one"), bash("echo two")),
        "a reply without a call": {"text": "It is 3."},
        "an empty reply": {"text": ""},
    }
    script = script_text(*odd.values(), turn(bash("echo done")), SUBMIT)
    sides = beside.both("odd", script, run_words())
    replies = [answers(side.requests) for side in sides]
    for place, name in enumerate(odd):
        beside.add(f"call/{name}", *(result_facts("", one[place]) for one in replies))
    beside.add("call/after odd replies", *(result_facts("bash", one[len(odd)]) for one in replies))
    beside.add("end/odd replies", *map(ending_facts, sides))
    kept = [
        {"ids of calls are the server's": side.requests[-1].messages[-1]["tool_call_id"].startswith("call_")}
        for side in sides
    ]
    beside.add("history", *kept)


def ends_situations(beside: Beside) -> None:
    busy = [turn(bash(f"echo {n}")) for n in range(6)]
    over = Fault(
        400,
        "This model's maximum context length is 163840 tokens. You requested a total of 179069 tokens: 113533 tokens "
        "from the input messages and 65536 tokens for the completion.",
        code="context_length_exceeded",
    )
    failing = Fault(500, "The server had an error.", "server_error")
    saved = turn(bash("mkdir -p output; echo 3 > output/answer.txt"))
    situations: dict[str, tuple[list[dict[str, Any]], list[str], dict[str, Any]]] = {
        "limit of steps": (busy, ["--max_steps", "3"], {}),
        "limit of tokens": (busy, ["--max_token_limit", "300"], {}),
        "wrong key": (busy, [], {"faults": [UNAUTHORIZED] * 40}),
        "one failure of the server": ([saved, SUBMIT], [], {"faults": [failing]}),
        "context too long": ([saved, SUBMIT], [], {"faults": [over]}),
        "thoughts": (
            [*(turn(bash(f"echo {n}"), reasoning="t" * 9000) for n in range(3)), saved, SUBMIT],
            ["--max_token_limit", "5000"],
            {},
        ),
        "only text": ([{"text": f"It is {n}."} for n in range(8)], ["--max_steps", "6"], {}),
    }
    for name, (turns, words, options) in situations.items():
        theirs, ours = beside.both(
            name, script_text(*turns), run_words(*words), ours=["--prompts", "original"], **options
        )
        beside.add(f"end/{name}", ending_facts(theirs), ending_facts(ours))
        for fact in ("trajectory.json", "total steps", "file/answer.txt"):
            records = [record_facts(side).get(fact, MISSING) for side in (theirs, ours)]
            beside.add(f"end/{name}", {fact: records[0]}, {fact: records[1]})
        if name == "context too long":
            again = [side.requests[1].body["max_tokens"] for side in (theirs, ours)]
            beside.add(
                f"end/{name}", {"max_tokens asked next": again[0]}, {"max_tokens asked next": again[1]}
            )


def settings_situations(beside: Beside) -> None:
    once = script_text(turn(bash("mkdir -p output; echo 3 > output/answer.txt")), SUBMIT)
    address = ["--llm_base_url", "URL", "--api_key", "key"]
    for name, words, files in (
        ("a model with o3 in its name", run_words("--llm_name", "my-o3", *address), {}),
        (
            "a settings file",
            run_words(),
            {"llm-in-sandbox.yaml": "llm_name: from-file\nllm_base_url: URL\napi_key: key\n"},
        ),
    ):
        sides = beside.both(name, once, words, named=False, files=files)
        facts = [{key: side.first.get(key, MISSING) for key in ("model", "temperature")} for side in sides]
        beside.add(f"settings/{name}", *facts)
    nothing = beside.both("no model", once, run_words(), named=False)
    beside.add("end/no model named", ending_facts(nothing[0]), ending_facts(nothing[1]))


def timeout_situation(beside: Beside) -> None:
    script = script_text(turn(bash("echo begun; tail -f /dev/null; echo late")), SUBMIT)
    sides = beside.both("timeout", script, run_words())
    facts = [result_facts("bash", answers(side.requests)[0]) for side in sides]
    for side, found in zip(sides, facts, strict=True):
        text = answers(side.requests)[0][0]["content"]
        found["says that it took too long"] = bool(re.search(r"took too long|Timed out", text))
        found["keeps the output so far"] = "begun" in text
        del found["stdout"], found["stderr"]
    beside.add("call/a command over its time", *facts)


_BENCHMARKS = """
import json, sys
import llm_in_sandbox.benchmark.runner as runner
from llm_in_sandbox.cli import run_benchmark
rows, image, url = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
load = runner.load_task_config
runner.load_dataset_from_config = lambda config: rows[config["config"]]
runner.load_reward_function = lambda name: lambda answer, gold, **row: 1.0
for mode in ("llm-in-sandbox", "llm"):
    for task in rows:
        run_benchmark(task, llm_name="scripted", llm_base_url=url, api_key="key", docker_image=image, mode=mode,
                      output_dir="out", num_workers=1)
"""


def benchmark_situations(beside: Beside) -> None:
    """The first request of each task in both modes; the data sets are on the network, so rows of our own stand in."""
    rows = {
        task: [{
            "id": "a", "domain": task, "problem_statement": f"A {{problem}} of {task}?", "ground_truth": gold(task),
            "qa_type": "free-form", "input_files": {"z.txt": "last", "a.txt": "first"},
        }]
        for task in TASKS
    }  # fmt: skip
    script = script_text({"text": "\\boxed{3}", "calls": [{"tool": "submit"}]})
    files = {f"data/{task}.json": json.dumps(one) for task, one in rows.items()}
    files["judge.yaml"] = script_text({"text": "CORRECT"})
    program = [str(beside.python), "-c", _BENCHMARKS, json.dumps(rows), DEFAULT_IMAGE, "URL"]
    words = [
        "benchmark", "run", *TASKS, "--mode", "sandbox,llm", "--data", "data", "--repeats", "1", "--docker_image",
        DEFAULT_IMAGE, "--prompts", "original", "--judge_model", "scripted/judge.yaml", "--workers", "2",
    ]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(beside.play, beside.folder / "tasks/theirs", script, program, {}, named=False)
        second = pool.submit(
            beside.play, beside.folder / "tasks/ours", script,
            [sys.executable, "-m", "llm_sandbox_nb", *words], beside.environment, files=files,
        )  # fmt: skip
        theirs, ours = first.result(), second.result()
    for task in TASKS:
        for mode in ("sandbox", "llm"):
            facts = [_task_facts(side, task, mode) for side in (theirs, ours)]
            beside.add(f"task/{task}/{mode}", *facts)
    assert theirs.code == 0, theirs.output[-3000:]


def _task_facts(played: Played, task: str, mode: str) -> dict[str, Any]:
    for request in played.requests:
        body = request.body
        if ("tools" in body) == (mode == "sandbox") and f"of {task}?" in body["messages"][-1]["content"]:
            found = request_facts(body)
            return {
                name: value
                for name, value in found.items()
                if not name.startswith("tool/") and name.split("/")[-1] not in ("stream", "stream_options")
            }
    return {"request": MISSING, "output": played.output[-2000:]}


def gold(task: str) -> str:
    if task in ("chem", "biomed"):
        return "A"
    if task == "instruct_follow":
        return json.dumps({"instruction_id_list": ["format:no_whitespace"], "kwargs": [{}]})
    return "3"


def talking_situation(beside: Beside) -> None:
    script = script_text(*({"text": f"It is {n}."} for n in range(8)))
    words = ["benchmark", "--task", "demo", "--start_id", "0", "--end_id", "1", "--num_workers", "1",
             "--docker_image", DEFAULT_IMAGE, "--max_steps", "6", "--output_dir", "out"]  # fmt: skip
    theirs, ours = beside.both(
        "talking", script, words, ours=["--prompts", "original", "--tool_calls", "native"]
    )
    beside.add("benchmark/only text", ending_facts(theirs), ending_facts(ours))


REWARDS: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ("math", {}, "\\boxed{42}", "42"), ("math", {}, "42", "42"), ("math", {}, "\\boxed{\\frac{1}{2}}", "1/2"),
    ("math", {}, "0.5", "\\frac{1}{2}"), ("math", {}, "\\boxed{41}", "42"), ("math", {}, "forty", "42"),
    ("math", {}, "The answer is \\boxed{7}.", "7"), ("math", {}, "\\boxed{x^2+1}", "x^2+1"),
    ("math", {}, "\\boxed{1,000}", "1000"), ("math", {}, "\\boxed{2\\sqrt{3}}", "\\sqrt{12}"),
    ("math", {}, "\\boxed{(1,2)}", "(1,2)"), ("math", {}, "\\boxed{(2,1)}", "(1,2)"),
    ("chem", {}, "A", "A"), ("chem", {}, "b", "B"), ("chem", {}, "The answer is C", "C"), ("chem", {}, "(D)", "D"),
    ("chem", {}, "Answer: A", "A"), ("chem", {}, '{"answer": "B"}', "B"), ("chem", {}, "\\boxed{C}", "C"),
    ("chem", {}, "B", "A"), ("chem", {}, "N/A", "A"), ("chem", {}, "A guess", "A"), ("chem", {}, "C. benzene", "C"),
    ("biomed", {}, "J", "J"), ("biomed", {}, "The best choice is E.", "E"), ("biomed", {}, "", "A"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "The answer is B", "B"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "B", "B"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "C", "B"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "A, C", "C, A"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "A", "A, C"),
    ("instruct_pretrain", {"qa_type": "multiple choice"}, "3", "3"),
    ("instruct_pretrain", {"qa_type": "Multiple Choice"}, "a", "A"),
    ("instruct_pretrain", {"qa_type": "free-form"}, "the cat sat", "the cat sat"),
    ("instruct_pretrain", {"qa_type": "free-form"}, "the cat sat down", "the cat sat"),
    ("instruct_pretrain", {"qa_type": "free-form"}, "0.5", "1/2"),
    ("instruct_pretrain", {"qa_type": "free-form"}, "a dog", "the cat"),
    ("instruct_pretrain", {"qa_type": "free-form"}, "", "the cat"),
    ("instruct_pretrain", {}, "3", "3"), ("instruct_pretrain", {}, "4", "3"),
    ("instruct_pretrain", {}, "The answer is 3", "3"), ("instruct_pretrain", {"qa_type": ""}, "\\boxed{3}", "3"),
    ("instruct_pretrain", {"domain": "math_mini"}, "\\boxed{2}", "2"),
    ("instruct_pretrain", {"domain": "biomed_mini"}, "(B)", "B"),
    ("instruct_pretrain", {"qa_type": "extraction"}, "apples, pears", "pears, apples"),
    ("instruct_pretrain", {}, "B", "B"),
)  # fmt: skip
"""Task, columns, answer and gold answer."""
RULES = {"math": "math", "chem": "letter", "biomed": "letter", "instruct_pretrain": "routed"}
_SCORES = """
import importlib.util, json, sys, types
import llm_in_sandbox.benchmark as package
from pathlib import Path
missing = types.ModuleType("llm_in_sandbox.benchmark.instruct_follow.reward")
missing.compute_score = None  # it needs a checkout of IFBench
sys.modules[missing.__name__] = missing
def module(task):
    path = Path(package.__file__).parent / task / "reward.py"
    spec = importlib.util.spec_from_file_location(task, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
cases = json.loads(sys.stdin.read())
made = {task: module(task) for task in {case[0] for case in cases}}
print(json.dumps([made[task].compute_score(answer, gold, **row) for task, row, answer, gold in cases]))
"""


def rewards(beside: Beside) -> None:
    cases = [(task, {"domain": task} | row, answer, gold) for task, row, answer, gold in REWARDS]
    done = subprocess.run(
        [str(beside.python), "-c", _SCORES],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for (task, row, answer, gold), theirs in zip(
        cases, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        value = score_row(RULES[task], answer, gold, row).value
        ours = None if value is None else round(value, 6)
        kind = row.get("qa_type", "no type") or "no type"
        name = f"reward/{task if row['domain'] == task else row['domain']}/{kind}/{answer!r} for {gold!r}"
        beside.points.append(Point(name, round(theirs, 6), ours))


SITUATIONS = (
    tools_situation,
    odd_replies_situation,
    ends_situations,
    settings_situations,
    timeout_situation,
    benchmark_situations,
    talking_situation,
    rewards,
)
