"""`llm-sandbox-nb settings`: every setting, its value here, and where that comes from."""

from __future__ import annotations

import argparse
import json
import os

from llm_sandbox_nb.cli import ENDED_WELL
from llm_sandbox_nb.cli.printer import harmless
from llm_sandbox_nb.options.table import FILE_SETTINGS
from llm_sandbox_nb.options.values import resolve_sources, settings_json, settings_text


def settings_command(arguments: argparse.Namespace) -> int:
    """Print the settings as a table or as JSON.

    Raises:
        UsageError: a settings file or a variable cannot be understood.
    """
    values, files = resolve_sources({"settings": arguments.settings}, os.environ, FILE_SETTINGS)
    if arguments.json:
        print(json.dumps(settings_json(values, files), indent=2))
    else:
        print(harmless(settings_text(values, files, os.environ)))
    return ENDED_WELL
