"""Programs that the browser tests need beside Python."""

from __future__ import annotations

import os
import shutil

import pytest


def require_program(name: str) -> str:
    """Where a program is; without it the test is skipped, or fails when engines are required."""
    if path := shutil.which(name):
        return path
    if os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") == "1":
        pytest.fail(f"{name} is required (LLM_SANDBOX_REQUIRE_ENGINES=1), but it is not here", pytrace=False)
    pytest.skip(f"there is no {name} here")
