"""Entry point of `python -m llm_sandbox_nb`, the same program as the command `llm-sandbox-nb`."""

import sys

from llm_sandbox_nb.cli import main

sys.exit(main())
