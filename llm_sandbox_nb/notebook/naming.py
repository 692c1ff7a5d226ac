"""What this notebook is called, as far as its kernel can know: runs are kept in a folder of that name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

UNKNOWN = "notebook"


def notebook_name(namespace: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """The file's name without ending: from Jupyter, else from VS Code, else `notebook`."""
    path = environment.get("JPY_SESSION_NAME") or str(namespace.get("__vsc_ipynb_file__") or "")
    if path.endswith(("/", "\\")):
        return UNKNOWN
    name = re.sub(r"[^\w.-]+", "-", PurePath(path).stem).strip("-.")
    return name[:80] or UNKNOWN
