"""Reading one megabyte of text for calls takes 50 ms of CPU at most, whatever is in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from best_of import best_of

from llm_sandbox_nb.agent.tools.toolbox import TOOLS
from llm_sandbox_nb.model.text_calls import read_text_calls

SIZE = 1_000_000
MOST = 50
"""Milliseconds."""
PROSE = "The fox, which was told to look (at the file), jumps over `the` lazy dog; then it's done.\n"
MARKDOWN = "# A title\n\nSome *prose* with `code` and [a link](http://x).\n\n- an item\n\n```python\nprint(1)\n```\n\n"
CODE = "def f(x):\n    return {'a': [x, \"b\\n\"]}  # it's <b>\n"
ROW = {"name": "x", "value": [1, 2.5, None, True], "text": "it's"}


def filled(piece: str) -> str:
    return piece * (SIZE // len(piece))


def call(**arguments: str) -> str:
    return json.dumps({"name": "execute_bash", "arguments": arguments})


TEXTS = {
    "prose": (filled(PROSE), 0),
    "Markdown": (filled(MARKDOWN), 0),
    "prose, then a call": (f"{filled(PROSE)}\n\n<tool_call>{call(command='ls')}</tool_call>", 1),
    "Markdown, then a call": (f"{filled(MARKDOWN)}\n\n<tool_call>{call(command='ls')}</tool_call>", 1),
    "a thought, then a call": (
        f"<think>{filled(PROSE)}</think><tool_call>{call(command='ls')}</tool_call>",
        1,
    ),
    "a call with a long JSON string": (f"<tool_call>{call(command=filled(CODE))}</tool_call>", 1),
    "a call with a long XML value": (
        f"<tool_call>\n<function=execute_bash>\n<parameter=command>\n{filled(CODE)}\n</parameter>\n</function>\n"
        "</tool_call>",
        1,
    ),
    "a call with a long value between keys": (
        f"<tool_call>execute_bash<arg_key>command</arg_key><arg_value>{filled(CODE)}</arg_value></tool_call>",
        1,
    ),
    "a call as bare JSON": (call(command=filled(CODE)), 1),
    "a call in single quotes": (
        f"{{'name': 'execute_bash', 'arguments': {{'command': '{filled('echo a; ')}'}}}}",
        1,
    ),
    "JSON data": (json.dumps([ROW] * (SIZE // 80)), 0),
    "a ```bash block": (f"```bash\n{filled(CODE)}\n```", 1),
    "unclosed marks": (filled("<tool_call>"), 0),
    "unclosed marks with JSON": (filled('<tool_call>{"a": "'), 0),
    "unclosed marks of a list": (filled("<tool_call>['a', "), 0),
    "unclosed marks of XML": (filled("<tool_call><function=execute_bash><parameter=command>"), 0),
    "unclosed fences": (filled("\n```\nls\n~~~\n"), 0),
    "unclosed brackets": (filled("\n{'a': [") + "}", 0),
    "backticks": (filled("` `` ") + "<tool_call>", 0),
    "calls without end": (filled(f"<tool_call>{call(command='ls')}</tool_call>\n"), 0),
}


def cpu(text: str) -> float:
    """Milliseconds of CPU, the best of five: what else this machine does is no part of it."""
    written, count = TEXTS[text]

    def once() -> float:
        started = time.process_time()
        reply = read_text_calls(written, TOOLS.schemas(), bash_blocks=True)
        used = 1000 * (time.process_time() - started)
        assert len(reply.calls) == count, text
        return used

    return best_of(5, once, bar=0)


def test_a_megabyte_is_read_in_50_ms(measured: Callable[..., None]) -> None:
    used = {text: cpu(text) for text in TEXTS}
    slowest = max(used, key=lambda text: used[text])
    note = f"{slowest}; prose {used['prose']:.0f} ms, prose with a call {used['prose, then a call']:.0f} ms"
    what = f"1 MB of text read for calls, the slowest of {len(TEXTS)} texts"
    measured(what, used[slowest], "ms", bar=f"at most {MOST} ms of CPU", note=note)
    assert used[slowest] <= MOST, used
