"""How the executor gets into a sandbox: a small Python program reads the package `executor` from the pipe.

The package comes as one JSON object of module sources, and is imported from there like any other: nothing is
written to the sandbox's disk, and a module is compiled when it is first imported. Compiled modules come
along, for a Python that is like this one: that saves a third of the time it takes. Both are compressed: what
an engine passes on costs it more than unpacking costs the sandbox.
"""

from __future__ import annotations

import json
import marshal
import zlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.util import MAGIC_NUMBER

PATIENCE = 45
"""Seconds until the executor must have come: a container's pipe stays open when its owner dies half-way."""
FOLDER_VARIABLE = "LLM_SANDBOX_FOLDER"
"""In the environment of an executor that is to remove this folder when it ends, however early that is."""
PROGRAM_MARK = FOLDER_VARIABLE
"""A word in the command line of every executor."""
_NO_DOCSTRINGS = 2
_PROGRAM = (
    """
import json, marshal, os, signal, sys, zlib
from _frozen_importlib_external import MAGIC_NUMBER
signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
signal.alarm(%d)
def read(n):
    data = b''
    while len(data) < n:
        piece = os.read(0, n - len(data))
        if not piece:
            import shutil
            shutil.rmtree(os.environ.get('%s', ''), True)
            os._exit(0)
        data += piece
    return data
sources = read(int(read(8)))
codes = read(int(read(8)))
if codes[:4] == MAGIC_NUMBER:
    codes = marshal.loads(zlib.decompress(codes[4:]))
else:
    codes = json.loads(zlib.decompress(sources))
del sources
class Importer:
    def find_spec(self, name, path=None, target=None):
        if name in codes:
            return type(sys.__spec__)(name, self, is_package=name == 'executor')
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        code = codes[name]
        exec(compile(code, name, 'exec') if isinstance(code, str) else code, module.__dict__)
signal.alarm(0)
sys.meta_path.insert(0, Importer())
""".strip()
    % (PATIENCE, FOLDER_VARIABLE)
)
_SERVE = """
from executor.main import main
main()
""".strip()


def bootstrap_argv(python: str = "python3", *, steps: Sequence[str] = ()) -> list[str]:
    """The command that starts the executor; it expects `executor_source()` on its stdin, then frames.

    `steps`: Python programs that run before the executor serves; they can import its modules.
    """
    return [python, "-I", "-S", "-u", "-c", "\n".join([_PROGRAM, *steps, _SERVE])]


@cache
def executor_source() -> bytes:
    """What to write first to the pipe: the executor's modules, and the same compiled."""
    folder = resources.files(__package__) / "executor"
    files = {file.name: file for file in folder.iterdir() if file.name.endswith(".py")}
    names = {name: "executor" if name == "__init__.py" else f"executor.{name[:-3]}" for name in files}
    texts = {names[name]: files[name].read_text("utf-8") for name in sorted(files)}
    codes = {
        name: compile(text, name, "exec", dont_inherit=True, optimize=_NO_DOCSTRINGS)
        for name, text in texts.items()
    }
    sources = zlib.compress(json.dumps(texts).encode("ascii"))
    compiled = MAGIC_NUMBER + zlib.compress(marshal.dumps(codes))
    return b"%08d%b%08d%b" % (len(sources), sources, len(compiled), compiled)
