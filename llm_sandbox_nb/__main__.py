"""Program of `python -m llm_sandbox_nb`, which does the same as the command `llm-sandbox-nb`."""

import sys

from llm_sandbox_nb.cli import main

sys.exit(main())
