"""`python -m llm_sandbox_nb` is `llm-sandbox-nb`."""

import sys

from llm_sandbox_nb.cli import main

sys.exit(main())
