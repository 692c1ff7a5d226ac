"""What is special to an isolation, and the history from inside: `box` is a sandbox, see shared_sandboxes.py."""

from shared_sandboxes import (  # noqa: F401
    box,
    isolation,
    pytest_generate_tests,
    pytest_pyfunc_call,
    shared_sandboxes,
)
