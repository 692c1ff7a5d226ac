"""Capabilities that a Python program uses, found in its syntax tree. This module is a part of the published rules."""

from __future__ import annotations

import ast
import posixpath
import shlex
import warnings
from collections.abc import Iterator

from llm_sandbox_nb.analysis.shell_rules import stays_here

_USUAL_NAMES = {"np": "numpy", "pd": "pandas", "sp": "sympy", "plt": "matplotlib.pyplot", "nx": "networkx",
                "mp": "mpmath"}  # fmt: skip
_NETWORK = (
    "requests.", "httpx.", "aiohttp.", "urllib3.", "urllib.request.", "http.client.", "ftplib.", "smtplib.",
    "socket.create_connection", "pubchempy.", "Bio.Entrez.", "wikipedia.", "wikipediaapi.", "arxiv.", "yfinance.",
    "nltk.download", "datasets.load_dataset", "huggingface_hub.", "openai.", "anthropic.", "chembl_webresource_client.",
)  # fmt: skip
_NOT_NETWORK = ("requests.utils.", "httpx.URL", "urllib3.util.")
_READERS = (
    "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open", "os.walk",
    "os.listdir", "os.scandir", "os.stat", "os.rename", "os.replace", "os.path.getsize", "os.path.exists",
    "os.path.isfile", "os.path.isdir", "os.path.getmtime", "glob.", "shutil.copy", "shutil.move", "fileinput.",
    "numpy.load", "numpy.genfromtxt", "numpy.fromfile", "pandas.read_", "PIL.Image.open", "mido.MidiFile",
    "pickle.load", "fitz.open", "pypdf.PdfReader", "PyPDF2.PdfReader", "pdfplumber.open", "docx.Document",
    "openpyxl.load_workbook", "h5py.File", "scipy.io.loadmat", "scipy.io.wavfile.read", "sqlite3.connect", "cv2.imread",
    "soundfile.read", "librosa.load", "wave.open", "polars.read_", "polars.scan_", "linecache.", "mmap.mmap",
    "cairosvg.svg2", "xml.etree.ElementTree.parse",
)  # fmt: skip
_READING_METHODS = frozenset({"read_text", "read_bytes", "rglob", "iterdir", "glob"})
_NUMERIC = (
    "numpy.", "scipy.", "sympy.", "mpmath.", "math.", "cmath.", "statistics.", "fractions.", "decimal.", "networkx.",
    "sklearn.", "numba.", "torch.", "statsmodels.", "cvxpy.", "pulp.", "ortools.", "gmpy2.", "z3.", "itertools.product",
    "itertools.permutations", "itertools.combinations", "itertools.accumulate", "galois.", "pint.",
)  # fmt: skip
_NOT_NUMERIC = ("numpy.load", "numpy.save", "numpy.genfromtxt", "numpy.fromfile", "scipy.io.", "torch.load",
                "torch.cuda.", "mpmath.mp")  # fmt: skip
_PANDAS_NUMERIC = frozenset(
    {"describe", "mean", "std", "var", "median", "corr", "quantile", "cumsum", "rolling"}
)
_SHELLS = ("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
           "subprocess.Popen", "subprocess.getoutput", "os.system", "os.popen")  # fmt: skip
_STARRED = ("sqrt", "sin", "cos", "solve", "symbols", "factorial", "array")
"""Names that programs often get from `from math import *` and similar imports."""
_HEAVY = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
_LIGHT = (ast.Add, ast.Sub)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def program_uses(text: str) -> tuple[set[str], list[str]]:
    """Return the capabilities that a program uses, and the shell commands that are literal texts in the program.

    If the complete text is not valid Python, only its valid parts are read.
    """
    found: set[str] = set()
    shells: list[str] = []
    for tree in _trees(text):
        reader = _Reader(tree)
        found |= reader.uses()
        shells += reader.shells
    return found, shells


def _trees(text: str) -> Iterator[ast.Module]:
    text = _dedented(text)
    whole = _parsed(text)
    if whole is not None:
        yield whole
        return
    chunk: list[str] = []
    for line in [*text.splitlines(), ""]:
        if (line[:1].strip() or not line) and chunk:
            tree = _parsed("\n".join(chunk))
            if tree is not None:
                yield tree
            chunk = []
        chunk.append(line)


def _dedented(text: str) -> str:
    """Remove the common indentation like `textwrap.dedent`, but fast even if the indentation is very deep."""
    lines = [line if line.strip(" \t") else "" for line in text.split("\n")]
    margin = posixpath.commonprefix([line[: -len(line.lstrip(" \t"))] for line in lines if line])
    return "\n".join(line[len(margin) :] for line in lines)


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.names = _imported(tree)
        self.shells: list[str] = []
        self._paths = _path_names(tree)
        self._nodes = list(ast.walk(tree))
        self._texts: set[int] = set()
        """`id` of each operation with a text operand. A loop adds inner operations before outer operations. A recursion
        instead of this loop could be too deep."""
        for node in reversed(self._nodes):
            if isinstance(node, ast.BinOp) and self._about_text(node):
                self._texts.add(id(node))
        self._calls = [node for node in self._nodes if isinstance(node, ast.Call)]

    def uses(self) -> set[str]:
        found = set()
        for call in self._calls:
            name = self._name(call.func)
            if name.startswith(_NETWORK) and not name.startswith(_NOT_NETWORK) and not _goes_home(call):
                found.add("external")
            if self._reads_file(name, call):
                found.add("files")
            if self._is_numeric(name, call):
                found.add("computation")
            if name.startswith(_SHELLS) and (command := _shell_command(call)):
                self.shells.append(command)
        if self._does_sums() or self._simulates():
            found.add("computation")
        return found

    def _name(self, node: ast.expr) -> str:
        """Return the dotted name of a called function, with imports resolved, or an empty text if it has no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call) and parts:
            return ""
        if not isinstance(node, ast.Name):
            return ""
        root = self.names.get(node.id) or _USUAL_NAMES.get(node.id, node.id) if parts else None
        return ".".join([root or self.names.get(node.id, node.id), *reversed(parts)])

    def _reads_file(self, name: str, call: ast.Call) -> bool:
        if name in ("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "wave.open"):
            return _mode(call).strip("bt") in ("r", "r+", "")
        if isinstance(call.func, ast.Attribute) and call.func.attr == "open" and not call.args:
            return False
        if name.startswith(_READERS):
            return bool(call.args or call.keywords) or name.startswith(("os.", "glob."))
        return isinstance(call.func, ast.Attribute) and call.func.attr in _READING_METHODS

    def _is_numeric(self, name: str, call: ast.Call) -> bool:
        if name.startswith(_NUMERIC) and not name.startswith(_NOT_NUMERIC):
            return True
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return method in _PANDAS_NUMERIC and "pandas" in self.names.values()

    def _does_sums(self) -> bool:
        """Return True if the program has a product, quotient, remainder or power, or at least two sums or differences.

        Operations on texts, operations in indexes, and counters such as `n += 1` are ignored.
        """
        light = 0
        for node in _outside_slices(self.tree):
            if isinstance(node, ast.BinOp | ast.AugAssign) and not self._about_text(node):
                if isinstance(node.op, _HEAVY):
                    return True
                counts_up = isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)  # n += 1
                if isinstance(node.op, _LIGHT) and not counts_up:
                    light += 1
        return light >= 2

    def _about_text(self, node: ast.BinOp | ast.AugAssign) -> bool:
        inside = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        return any(self._is_text(part) for part in inside)

    def _is_text(self, node: ast.expr) -> bool:
        if isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple):
            return True
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str | bytes)
        if isinstance(node, ast.Call):
            name = self._name(node.func)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return name in ("str", "repr", "chr", "pathlib.Path", "Path", "list") or method in (
                "join", "strip", "lower", "upper", "format", "replace", "read", "read_text",
            )  # fmt: skip
        if isinstance(node, ast.BinOp):
            return id(node) in self._texts
        return isinstance(node, ast.Name) and node.id in self._paths

    def _simulates(self) -> bool:
        """Return True if the program draws random numbers in a loop."""
        loops = [node for node in ast.walk(self.tree) if isinstance(node, _LOOPS)]
        return any(
            isinstance(inner, ast.Call) and self._name(inner.func).startswith("random.")
            for loop in loops
            for inner in ast.walk(loop)
        )


def _imported(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if alias.name == "*" and node.module in ("math", "sympy", "mpmath", "numpy"):
                    names |= {name: f"{node.module}.{name}" for name in _STARRED}
    return names


def _path_names(tree: ast.Module) -> set[str]:
    """Return the names of variables that hold a path or a text. Operations such as `/` on them are not arithmetic."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Assign)
            or len(node.targets) != 1
            or not isinstance(node.targets[0], ast.Name)
        ):
            continue
        inside = [part for part in ast.walk(node.value) if isinstance(part, ast.Name)]
        is_text = isinstance(node.value, ast.JoinedStr) or (
            isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or any(part.id == "Path" or part.id in found for part in inside[:1]):
            found.add(node.targets[0].id)
    return found


def _outside_slices(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        left_out = node.slice if isinstance(node, ast.Subscript) else None
        waiting += [child for child in ast.iter_child_nodes(node) if child is not left_out]


def _goes_home(call: ast.Call) -> bool:
    return stays_here(
        node.value
        for argument in call.args
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _mode(call: ast.Call) -> str:
    node = call.args[1] if len(call.args) > 1 else None
    node = next((keyword.value for keyword in call.keywords if keyword.arg == "mode"), node)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "r"


def _shell_command(call: ast.Call) -> str:
    argument = call.args[0] if call.args else None
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.List):
        words = [
            item.value
            for item in argument.elts
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        return shlex.join(words)
    return ""
