"""Measures: python -m measure --model FILE.gguf [--columns ...] [--rows ...] [--limit N]; `make measure` calls it.

The same command continues where it was killed, and leaves out the rows that docs/data/measured has. It then adds its
rows there, and writes docs/data/measured.json and the tables of docs/explanation/measured.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from llm_sandbox_nb.benchmark.attempt import HowToAsk
from llm_sandbox_nb.benchmark.item_pipeline import Backend, FatalError, Item
from llm_sandbox_nb.benchmark.results import Result, append_line, read_lines
from llm_sandbox_nb.benchmark.runner import Runner, RunnerOptions, make_opener, plan
from llm_sandbox_nb.model.contract import ModelError
from llm_sandbox_nb.model.model_names import make_model
from llm_sandbox_nb.sandbox.docker.images import DEFAULT_IMAGE
from llm_sandbox_nb.version import __version__
from measure import measures, summary
from measure.columns import COLUMNS, COMMAND_TIMEOUT, LIMITS, SAMPLING, VARIANTS, Column, modes_of, task_of
from measure.local_server import Server, served
from measure.peers_backend import PEERS, PeerBackend, interpreter_of
from measure.rows import DEVELOPMENT, NUMBERS, REPEATED, SEED, RowsError, rows_of

ROOT = Path(__file__).parents[2]
MACHINE = "machine.json"
TOGETHER = 50
"""Rows of each set that all columns do before the next ones: what is there when it is stopped can be compared."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; `--help` shows them."""
    parser = argparse.ArgumentParser(prog="make measure", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--model", required=True, help="local/NAME or a GGUF file; with --api-base the name there"
    )
    parser.add_argument(
        "--api-base", help="a server that runs, with OpenAI's protocol; default: one of our own"
    )
    parser.add_argument(
        "--tuning", action="store_true", help="the variants of text mode, on the rows for tuning"
    )
    parser.add_argument("--columns", help=f"of {', '.join(COLUMNS)}; with --tuning of {', '.join(VARIANTS)}")
    parser.add_argument(
        "--rows", help=f"of {', '.join((*NUMBERS, *REPEATED))}; with --tuning of {', '.join(DEVELOPMENT)}"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also the rows that are published: their new results replace them",
    )
    parser.add_argument("--limit", type=int, help="so many rows of each set, the first ones")
    parser.add_argument(
        "--ifbench", type=Path, help="IFBench_test.jsonl of allenai/IFBench; without it that set is left out"
    )
    parser.add_argument(
        "--isolation", default="bubblewrap", help="of this package's sandboxes; peers use Docker"
    )
    parser.add_argument("--image", default=DEFAULT_IMAGE, help="the image of all sandboxes in Docker")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="rows at a time; the tables state the number, because the wall time of a row grows with it",
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--summary-only", action="store_true", help="write the tables from what is there")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    given = parser.parse_args(words)
    given.out = given.out or ROOT / "out" / ("tuning" if given.tuning else "measure")
    columns, rows = (VARIANTS, DEVELOPMENT) if given.tuning else (COLUMNS, {**NUMBERS, **REPEATED})
    for name, known in (("columns", columns), ("rows", rows)):
        chosen = [one for one in (getattr(given, name) or ",".join(known)).split(",") if one]
        if unknown := [one for one in chosen if one not in known]:
            parser.error(f"--{name}: there is no {unknown[0]!r}; known are {', '.join(known)}.")
        setattr(given, name, chosen)
    return given


def items_of(column: Column, given: argparse.Namespace, folder: Path) -> list[tuple[int, Item]]:
    """Return the items of a column with their places in their sets.

    Rows that were published from another folder are left out, unless they are measured again. Those of this folder are
    scored again if the scorer changed.
    """
    rows_folder = given.docs / (summary.TUNED_ROWS if given.tuning else summary.ROWS)
    published = [] if given.again else summary.published(rows_folder, folder.name, column.name)
    done = {line["key"] for line in published}
    done -= {line["key"] for line in read_lines(folder / column.name / measures.FILE)}
    found = []
    for name in given.rows:
        repeats = 1 if given.tuning else REPEATED.get(name, 1)
        if repeats > 1 and column.name != "text":
            continue
        rows = rows_of(name, given.ifbench)[: given.limit]
        places = {row.id: place for place, row in enumerate(rows)}
        items = plan([(task_of(name, column, folder), rows)], modes_of(column, name), repeats)
        found += [(places[item.row.id], item) for item in items if key_of(item) not in done]
    return found


def key_of(item: Item | Result) -> str:
    return "/".join(map(str, item.key))


async def measure_column(
    column: Column, items: list[Item], server: Server, given: argparse.Namespace, out: Path
) -> None:
    """Measure the rows of a column that are not measured yet, `given.workers` at a time, which share the CPU times."""
    clock = measures.Clock(server.process)
    keys, begun = {key_of(item) for item in items}, time.monotonic()
    before = {one["key"]: one for one in read_lines(out / measures.FILE) if one["key"] in keys}
    done = set(before)

    def ended(result: Result) -> None:
        key = key_of(result)
        line = {"key": key, **measures.measures_of(out, result, clock.stop(result.key), given.workers)}
        if (known := before.get(key)) and known["wall"] == line["wall"]:  # only its answer was scored again
            line |= {name: known[name] for name in ("agent_cpu", "model_cpu", "together") if name in known}
        append_line(out / measures.FILE, line)
        done.add(key)
        print(
            f"{column.name} {result.task}/{result.item}: {_word(result)} "
            f"({len(done)} of {len(keys)}, {time.monotonic() - begun:.0f} s)",
            flush=True,
        )

    how = HowToAsk(
        make_model(f"openai/{server.model}", api_base=server.url, api_key=server.key),
        SAMPLING,
        limits=LIMITS,
        command_timeout=COMMAND_TIMEOUT,
        tool_calls=column.tool_calls,
    )
    backend: Backend | None = None
    if column.peer:
        python = await interpreter_of(column, given.out / "peers")
        program = PEERS / f"{column.peer}_row.py"
        backend = PeerBackend(python, program, out, server, given.image)
    image = {"image": given.image} if given.isolation == "docker" else {}
    network = None if given.isolation == "process" else "none"
    runner = Runner(
        how,
        make_opener(given.isolation, network=network, **image),
        RunnerOptions(out, workers=given.workers, attempts=1),
        on_result=ended,
        on_begin=lambda item: clock.start(item.key),
        backend=backend,
    )
    await runner.run(items)


def _word(result: Result) -> str:
    return result.error_kind or {1.0: "right", 0.0: "wrong", None: "not scored"}.get(
        result.score, "partly right"
    )


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "version": __version__,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and write the tables; returns the exit code."""
    given = arguments(words)
    try:
        if not given.summary_only:
            _measure(given)
    except (RowsError, ModelError, FatalError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped; the same command continues.", file=sys.stderr)
        return 130
    written = summary.write(given.out, given.docs, tuning=given.tuning)
    print(f"The tables are in {written}")
    return 0


def _measure(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    server = nullcontext(Server(given.model, given.api_base)) if given.api_base else served(given.model)
    with server as one:
        folder = given.out / one.model
        folder.mkdir(exist_ok=True)
        facts = {
            **machine(),
            "model": one.model,
            "sha256": one.sha256,
            "seed": SEED,
            "isolation": given.isolation,
        }
        append_line(folder / MACHINE, {**facts, "threads": one.threads, "started": round(time.time())})
        columns = VARIANTS if given.tuning else COLUMNS
        items = {name: items_of(columns[name], given, folder) for name in given.columns}
        last = max((place for some in items.values() for place, _ in some), default=-1)
        for end in range(TOGETHER, last + TOGETHER + 1, TOGETHER):
            for name in given.columns:
                now = [item for place, item in items[name] if place < end]
                asyncio.run(measure_column(columns[name], now, one, given, folder / name))


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C, so that peers remove their containers
    sys.exit(main())
