"""The promises of a sandbox: each test runs in `process`, and in the other isolations as its marks say."""

from shared_sandboxes import (  # noqa: F401
    box,
    isolation,
    pytest_generate_tests,
    pytest_pyfunc_call,
    shared_sandboxes,
)
