"""Progress of a benchmark, with one row for each task and mode. The rows change as items begin and end."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_sandbox_nb.benchmark.item_pipeline import Item
from llm_sandbox_nb.benchmark.results import Key, Result

_MAX_NOTES = 3


@dataclass
class CellProgress:
    """Progress of a task in one mode. Times are in seconds, and cover only this start of the benchmark.

    `done`, `errors`, `tokens`, `cost` and `score` also count results of earlier starts.
    """

    task: str
    mode: str
    total: int = 0
    done: int = 0
    running: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    """Token count. The history of a conversation counts only once, although each request sends it again."""
    cost: float | None = 0.0
    """Cost in US dollars, or None if the cost of a result is unknown."""
    elapsed: float = 0.0
    rest: float | None = None
    """Estimated remaining seconds, or None while there is no estimate."""
    score: float | None = None
    """Mean score of the problems so far. The score of a problem is the mean of its repeats."""


class _Cell:
    def __init__(self, task: str, mode: str) -> None:
        self.shown = CellProgress(task, mode)
        self.scores: dict[str, tuple[float, int]] = {}
        self.begun: dict[Key, float] = {}
        self.first: float | None = None
        self.last = 0.0
        self.spent, self.ended = 0.0, 0

    def add(self, result: Result) -> None:
        shown = self.shown
        shown.done += 1
        if result.error_kind:
            shown.errors[result.error_kind] += 1
            return
        shown.tokens += result.prompt_tokens + result.model_tokens + result.environment_tokens
        shown.cost = None if shown.cost is None or result.cost is None else shown.cost + result.cost
        if result.score is not None:
            total, number = self.scores.get(result.problem, (0.0, 0))
            self.scores[result.problem] = total + result.score, number + 1


class Progress:
    """Thread-safe counter of started items and of results.

    Args:
        items: all items of the benchmark.
        open_items: the items that this start still has to run or score.
        results: the results on disk.
        workers: maximum number of items that run at the same time.
    """

    def __init__(
        self, items: Iterable[Item], open_items: Iterable[Item], results: Iterable[Result], workers: int
    ) -> None:
        self._workers = max(1, workers)
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, str], _Cell] = {}
        self.notes: deque[tuple[Key, str, str]] = deque(maxlen=_MAX_NOTES)
        """Key, kind and message of the newest errors."""
        finished = set()
        for item in items:
            finished.add(item.key)
            self._cell(item.key).shown.total += 1
        finished -= {item.key for item in open_items}
        for result in results:
            if result.key in finished:
                self._cell(result.key).add(result)
        self.before = self.done
        """Number of results that existed before this start."""

    def began(self, item: Item) -> None:
        with self._lock:
            cell, now = self._cell(item.key), time.monotonic()
            cell.begun[item.key] = now
            cell.first = now if cell.first is None else cell.first

    def ended(self, result: Result) -> None:
        with self._lock:
            cell, now = self._cell(result.key), time.monotonic()
            cell.spent += now - cell.begun.pop(result.key, now)
            cell.ended += 1
            cell.last = now
            cell.add(result)
            if result.error_kind:
                self.notes.append((result.key, result.error_kind, result.error))

    def stopped(self) -> None:
        """Stop the clocks of all items after the end of the benchmark."""
        with self._lock:
            for cell in self._cells.values():
                if cell.begun:
                    cell.last = time.monotonic()
                cell.begun.clear()

    def rows(self) -> list[CellProgress]:
        """Return a row for each task and mode. If there are several rows, add a last row for all rows together."""
        with self._lock:
            now = time.monotonic()
            rows = [self._row(cell, now) for cell in self._cells.values()]
            return [*rows, self._all(rows, now)] if len(rows) > 1 else rows

    @property
    def total(self) -> int:
        return sum(cell.shown.total for cell in self._cells.values())

    @property
    def done(self) -> int:
        return sum(cell.shown.done for cell in self._cells.values())

    def _cell(self, key: Key) -> _Cell:
        if key[:2] not in self._cells:
            self._cells[key[:2]] = _Cell(*key[:2])
        return self._cells[key[:2]]

    def _row(self, cell: _Cell, now: float) -> CellProgress:
        row = cell.shown
        row.running = len(cell.begun)
        scores = [total / number for total, number in cell.scores.values()]
        row.score = sum(scores) / len(scores) if scores else None
        if cell.first is not None:
            row.elapsed = (now if cell.begun else cell.last) - cell.first
        left, (spent, ended) = row.total - row.done, self._pace(cell)
        row.rest = 0.0 if not left else spent / ended * left / min(self._workers, left) if ended else None
        return CellProgress(**{**vars(row), "errors": Counter(row.errors)})

    def _pace(self, cell: _Cell) -> tuple[float, int]:
        """Return the number of seconds that the finished items of a cell took, and the number of these items.

        Only items of this start count. If there are no such items, return the sums over all cells.
        """
        if cell.ended:
            return cell.spent, cell.ended
        return sum(cell.spent for cell in self._cells.values()), sum(
            cell.ended for cell in self._cells.values()
        )

    def _all(self, rows: list[CellProgress], now: float) -> CellProgress:
        whole = CellProgress("all", "")
        for row in rows:
            whole.total, whole.done = whole.total + row.total, whole.done + row.done
            whole.running, whole.tokens = whole.running + row.running, whole.tokens + row.tokens
            whole.errors += row.errors
            whole.cost = None if whole.cost is None or row.cost is None else whole.cost + row.cost
        cells = self._cells.values()
        firsts = [cell.first for cell in cells if cell.first is not None]
        if firsts:
            whole.elapsed = (now if whole.running else max(cell.last for cell in cells)) - min(firsts)
        whole.rest = self._rest_of_all(rows)
        return whole

    def _rest_of_all(self, rows: list[CellProgress]) -> float | None:
        seconds, left = 0.0, 0
        for cell, row in zip(self._cells.values(), rows, strict=True):
            spent, ended = self._pace(cell)
            number = row.total - row.done
            if number and not ended:
                return None
            seconds += spent / ended * number if number else 0.0
            left += number
        return seconds / min(self._workers, left) if left else 0.0
