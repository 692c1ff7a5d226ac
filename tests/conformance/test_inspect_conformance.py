"""Inspect AI's 44 conformance checks of sandboxes, on each isolation that isolates, in both profiles.

The checks are Inspect's own, from the pinned version in the optional extra `conformance`; none is here.
"""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import support

from llm_sandbox_nb.sandbox.bubblewrap.launch import is_host_root
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox

if find_spec("inspect_ai") is None and os.environ.get("LLM_SANDBOX_REQUIRE_ENGINES") != "1":
    pytest.skip("Inspect AI is not installed: pip install --group conformance", allow_module_level=True)

PINNED = "0.3.285"
ROOT_READS_AND_WRITES_ALL = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
"""In `standard` the model is root, whom the permissions of files do not stop."""
NEEDS_MORE_USERS = {"test_exec_as_user"}
"""Started by an ordinary user, bubblewrap has that one user inside, by whatever name, without any rights."""


def known_failures(isolation: str, profile: str) -> set[str]:
    if isolation == "bubblewrap" and not is_host_root():
        return NEEDS_MORE_USERS
    return ROOT_READS_AND_WRITES_ALL if profile == "standard" else set()


def names_of_checks() -> list[str]:
    """Read them from Inspect's source: its import takes three seconds, and each worker collects this file."""
    package = find_spec("inspect_ai")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / "util" / "_sandbox" / "self_check.py"
    names = [getattr(node, "name", "") for node in ast.parse(source.read_text("utf-8")).body]
    return sorted(name for name in names if name.startswith("test_"))


CHECKS = names_of_checks()


class Host:
    """A sandbox that many checks share, in an event loop that lives as long."""

    def __init__(self, isolation: str, profile: str) -> None:
        self.known_failures = known_failures(isolation, profile)
        self.runner = asyncio.Runner()
        self.kept: set[int] = set()
        self.sandbox: Sandbox = self.runner.run(_open(isolation, profile))

    def check(self, name: str) -> None:
        from inspect_ai.util._sandbox import self_check

        from llm_sandbox_nb.hosts.inspect_sandbox import InspectSandbox

        check = getattr(self_check, name)
        self.runner.run(asyncio.wait_for(check(InspectSandbox(self.sandbox)), 90))
        self.kept |= support.child_pids()
        support.KEPT_PIDS.update(self.kept)

    def close(self) -> None:
        self.runner.run(self.sandbox.close())
        self.runner.close()
        support.KEPT_PIDS.difference_update(self.kept)


async def _open(isolation: str, profile: str) -> Sandbox:
    return await open_sandbox(isolation, profile=profile, network="none")


HOSTS = [
    pytest.param(
        (isolation, profile), id=f"{isolation}-{profile}", marks=[getattr(pytest.mark, isolation), *marks]
    )
    for isolation, profile, marks in (
        ("docker", "strict", [pytest.mark.campaign]),
        ("docker", "standard", [pytest.mark.campaign]),
        ("bubblewrap", "strict", []),
        ("bubblewrap", "standard", [pytest.mark.campaign]),
    )
]


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    isolation, profile = request.param
    support.require(isolation)
    host = Host(isolation, profile)
    yield host
    host.close()


def test_the_suite_is_the_one_that_was_counted() -> None:
    assert version("inspect_ai") == PINNED
    from inspect_ai.util._sandbox import self_check

    assert len(CHECKS) == 44
    assert set(CHECKS) == set(self_check.__all__)
    assert set(CHECKS) > ROOT_READS_AND_WRITES_ALL


WAITS = {"test_exec_timeout_kills_process", "test_exec_timeout_kills_child_processes"}
"""They wait for seconds; tests/contract/test_ending.py promises the same."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign if name in WAITS else ()) for name in CHECKS],
)
def test_inspect_check(host: Host, name: str, request: pytest.FixtureRequest) -> None:
    if name in host.known_failures:
        request.applymarker(pytest.mark.xfail(strict=True, reason="see where it is named"))
    host.check(name)
