"""The start of the executor. A small Python program in the sandbox reads the package `executor` from its stdin.

This process sends the package twice: the sources of the modules as a JSON object, then the compiled modules. If the
sandbox has the same version of Python as this process, the program uses the compiled modules. This saves a third of the
start time. The program writes no module to the sandbox's disk. Sources and compiled modules are sent compressed,
because an engine needs more time to forward bytes than the sandbox needs to decompress them.

In the executor, `import signal` returns the C module `_signal`. Python's own `signal` imports `enum`, and the import of
`enum` takes as long as the import of all modules of the executor.
"""

from __future__ import annotations

import json
import marshal
import zlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.abc import InspectLoader
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType

SOURCE_TIMEOUT = 45
"""Seconds in which the executor's modules must arrive; otherwise `_LOADER` ends. If the owner of a container dies
before it has sent them, the container's stdin stays open. Without this limit, `_LOADER` would then wait for ever."""
FOLDER_VARIABLE = "LLM_SANDBOX_FOLDER"
"""Environment variable with the path of a folder. The executor removes this folder when it ends. If stdin is closed
before all modules have arrived, `_LOADER` removes the folder."""
PROGRAM_MARK = FOLDER_VARIABLE
"""Word in the command line of every executor. A process whose command line has this word is an executor."""
_LOADER = (
    """
import _signal, marshal, os, sys, zlib
sys.modules['signal'] = signal = _signal
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
    codes = marshal.loads(codes[4:])
else:
    import json
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
        code = compile(code, name, 'exec') if isinstance(code, str) else marshal.loads(zlib.decompress(code))
        exec(code, module.__dict__)
signal.alarm(0)
sys.meta_path.insert(0, Importer())
""".strip()
    % (SOURCE_TIMEOUT, FOLDER_VARIABLE)
)
_SERVE = """
from executor.main import main
main()
""".strip()


def bootstrap_argv(python: str = "python3", *, steps: Sequence[str] = ()) -> list[str]:
    """Return the command that starts the executor. It first reads `executor_source()` from stdin, and then requests.

    `steps` are Python programs that run before the executor reads requests. They can import the executor's
    modules.
    """
    return [python, "-I", "-S", "-u", "-c", "\n".join([_LOADER, *steps, _SERVE])]


@cache
def executor_source() -> bytes:
    """Return the first bytes for the executor's stdin: the sources of all modules, then all compiled modules."""
    texts: dict[str, str] = {}
    codes: dict[str, bytes] = {}
    for file in sorted((resources.files(__package__) / "executor").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".py"):
            continue
        module = file.name.removesuffix(".py")
        name = "executor" if module == "__init__" else f"executor.{module}"
        texts[name] = file.read_text("utf-8")
        # Each module is compressed separately, because most modules are never imported.
        codes[name] = zlib.compress(marshal.dumps(_compiled(name)))
    sources = zlib.compress(json.dumps(texts).encode("ascii"))
    compiled = MAGIC_NUMBER + marshal.dumps(codes)
    return b"%08d%b%08d%b" % (len(sources), sources, len(compiled), compiled)


def _compiled(name: str) -> CodeType:
    """Return the code of a module of the executor, from Python's own cache if possible.

    Without the cache, the compilation of all modules would take 0.1 seconds.
    """
    spec = find_spec(f"{__package__}.{name}")
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(spec.name)
    assert code is not None
    return _with_file_name(code, name)


def _with_file_name(code: CodeType, name: str) -> CodeType:
    """Return the code with the file name `name`. The real path would show this machine's folders in the sandbox."""
    inner = (_with_file_name(part, name) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(inner))
