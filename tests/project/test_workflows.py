"""The forge's workflows call commands that a person can call too, with pinned actions and no right too many."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
RIGHTS = {"contents: read", "id-token: write"}


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_the_makefile_only(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    for command in commands:
        program, *words = command.removeprefix("sudo ").split()
        if program == ".ci/run":
            continue
        assert program == "make", command
        assert words[0] in TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_hash_and_names_its_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text("utf-8"))
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_the_rights_that_it_needs(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        given = {f"{right}: {level}" for right, level in job["permissions"].items()}
        assert given <= RIGHTS, name
        assert ("id-token: write" in given) == (job.get("environment") == "pypi"), name
        assert job["timeout-minutes"] > 0, name
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_a_tag_of_another_version_stops_the_release() -> None:
    from llm_sandbox_nb.version import __version__

    def check(tag: str) -> subprocess.CompletedProcess[str]:
        words = ["make", "tag-check", f"TAG={tag}", f"VENV={sys.prefix}"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert check(f"v{__version__}").returncode == 0
    refused = check("v99.0.0")
    assert refused.returncode != 0
    assert f"The tag is 'v99.0.0', but llm_sandbox_nb/version.py says {__version__}." in refused.stderr


def test_code_owners_are_named_for_folders_that_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert rows
    for pattern, *owners in rows:
        assert owners, pattern
        assert pattern == "*" or (ROOT / pattern.strip("/")).exists(), pattern


def test_forms_ask_for_what_doctor_says() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) >= 2
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8"))
    asked = [part for part in form["body"] if "llm-sandbox-nb doctor" in str(part)]
    assert [part["validations"]["required"] for part in asked] == [True]
