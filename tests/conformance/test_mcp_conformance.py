"""The official conformance suite of MCP for servers against the MCP route of a real server, in both eras.

The suite is an npm package, pinned in `mcp_suite/package-lock.json`. It sends no token, so a proxy adds one. Scenarios
that need more than this server offers are listed with the reason. docs/reference/mcp-conformance.md has the results;
`LLM_SANDBOX_WRITE_PAGES=1` writes them there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from jupyter_process import jupyter
from mcp_token_proxy import token_proxy
from npm_packages import installed
from outside_agents import OpenNotebook
from support import PATIENCE

from llm_sandbox_nb.mcp_server.endpoint import LEGACY, MODERN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "mcp-conformance.md"
SUITE = Path(__file__).with_name("mcp_suite")
REVISIONS = (LEGACY[0], MODERN)
NOT_APPLICABLE = {
    "a tool of the suite's own example server": (
        "tools-call-*", "elicitation-*", "json-schema-2020-12", "server-sse-polling", "input-required-result-*",
    ),
    "resources, which this server does not offer": ("resources-*", "sep-2164-resource-not-found"),
    "prompts, which this server does not offer": ("prompts-*",),
    "completions, which this server does not offer": ("completion-complete",),
    "log messages to the client, which this server does not send": ("logging-set-level",),
    "a tool with arguments that are headers too": ("http-custom-header-server-validation",),
}  # fmt: skip
"""Patterns of scenarios that cannot pass, by what they need."""
LEFT_OUT_CHECKS = {
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
    },
    "caching": {
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    },
}
"""Checks, by scenario, that need such a tool, or prompts or resources, too."""
Results = Mapping[str, list[dict[str, Any]]]
"""Checks of each scenario."""


def suite() -> list[str]:
    """The command of the suite. It needs Node 22, which its lock file has too."""
    modules = installed(SUITE)
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    program = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [str(modules / f"node-linux-{machine}" / "bin" / "node"), str(program)]


def results(url: str, revision: str, folder: Path) -> Results:
    words = [
        "server",
        "--url",
        url,
        "--suite",
        "all",
        "--spec-version",
        revision,
        "--output-dir",
        str(folder),
    ]
    done = subprocess.run(
        [*suite(), *words], capture_output=True, text=True, timeout=5 * PATIENCE, check=False
    )
    found = {}
    for path in sorted(folder.glob("server-*/checks.json")):
        named = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", path.parent.name)
        assert named is not None, path
        found[named[1]] = json.loads(path.read_text())
    assert found, done.stderr[-3000:]
    return found


def applies(scenario: str) -> bool:
    patterns = (pattern for group in NOT_APPLICABLE.values() for pattern in group)
    return not any(fnmatchcase(scenario, pattern) for pattern in patterns)


def problems(checks: list[dict[str, Any]]) -> dict[str, str]:
    """The messages of the checks that did not pass, by their ids."""
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    return {check["id"]: str(check.get("errorMessage")) for check in bad}


def table(found: Mapping[str, Results]) -> str:
    rows = ["| protocol | scenario | checks that pass | checks left out |", "|---|---|---|---|"]
    for revision, by_scenario in found.items():
        for scenario, checks in by_scenario.items():
            if applies(scenario):
                count = Counter(check["status"] for check in checks)
                left = ", ".join(f"`{name}`" for name in sorted(LEFT_OUT_CHECKS.get(scenario, ())))
                rows.append(f"| {revision} | `{scenario}` | {count['SUCCESS']} | {left} |")
    rows += ["", "| these scenarios are left out | because they need |", "|---|---|"]
    names = sorted({name for by_scenario in found.values() for name in by_scenario})
    for reason, patterns in NOT_APPLICABLE.items():
        listed = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        rows.append(f"| {', '.join(f'`{name}`' for name in listed)} | {reason} |")
    return "\n".join(rows)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Results]]:
    folder = tmp_path_factory.mktemp("suite")
    with jupyter(tmp_path_factory.mktemp("jupyter")) as server, server.warm_kernel() as kernel:
        notebook = OpenNotebook(server, kernel)
        with token_proxy(f"{server.url}llm-sandbox/mcp", notebook.token) as url:
            yield {revision: results(url, revision, folder / revision) for revision in REVISIONS}
        notebook.execute("%sandbox mcp --revoke")


@pytest.mark.campaign
@pytest.mark.parametrize("revision", REVISIONS)
def test_each_scenario_that_applies_passes(found: Mapping[str, Results], revision: str) -> None:
    failing = {name: problems(checks) for name, checks in found[revision].items() if applies(name)}
    unexpected = {
        name: {id: text for id, text in bad.items() if id not in LEFT_OUT_CHECKS.get(name, ())}
        for name, bad in failing.items()
    }
    assert {name: bad for name, bad in unexpected.items() if bad} == {}
    assert len(failing) >= 5
    for name, left_out in LEFT_OUT_CHECKS.items():
        assert name not in failing or left_out <= failing[name].keys(), "A check that was left out passes."


@pytest.mark.campaign
def test_every_pattern_of_a_scenario_that_does_not_apply_is_needed(found: Mapping[str, Results]) -> None:
    names = {name for by_scenario in found.values() for name in by_scenario}
    patterns = [pattern for group in NOT_APPLICABLE.values() for pattern in group]
    assert [one for one in patterns if not any(fnmatchcase(name, one) for name in names)] == []


@pytest.mark.campaign
def test_the_page_has_the_results(found: Mapping[str, Results]) -> None:
    before, begin, rest = PAGE.read_text().partition("<!-- table: begin -->\n")
    shown, end, after = rest.partition("<!-- table: end -->")
    if os.environ.get("LLM_SANDBOX_WRITE_PAGES") == "1":
        PAGE.write_text(f"{before}{begin}{table(found)}\n{end}{after}")
        return
    assert shown.strip() == table(found)
