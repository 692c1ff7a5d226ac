"""Writes src/generated/examples.json: the notebook that the launcher opens, from llm_sandbox_nb/examples.

python labextension/generate-examples.py            write the file
python labextension/generate-examples.py --check    fail when the file is not what the examples give
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llm_sandbox_nb.examples.notebook import examples_notebook

TARGET = Path(__file__).parent / "src" / "generated" / "examples.json"


def main() -> int:
    """Write the file, or say that it is out of date."""
    text = json.dumps(examples_notebook(), ensure_ascii=False, indent=1) + "\n"
    if sys.argv[1:] != ["--check"]:
        TARGET.write_text(text, "utf-8")
    elif not TARGET.is_file() or TARGET.read_text("utf-8") != text:
        print(
            f"{TARGET.name} is not what the examples give: run python labextension/generate-examples.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
