"""The version is written in one place; what has to repeat it says the same."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

from llm_sandbox_nb.version import __version__

ROOT = Path(__file__).parents[2]


def test_the_build_reads_the_version_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "llm_sandbox_nb/version.py"
    assert version("llm-sandbox-nb") == __version__


def test_the_package_for_npm_says_the_same() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text("utf-8"))
    lock = json.loads((ROOT / "labextension" / "package-lock.json").read_text("utf-8"))
    assert {package["version"], lock["version"], lock["packages"][""]["version"]} == {__version__}


def test_a_citation_names_no_version_that_grows_old() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert "version" not in citation
    assert citation["preferred-citation"]["type"] == "article"
    assert (
        citation["license"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]
    )


def test_the_changelog_has_a_place_for_what_comes() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    groups = {line for line in lines if line.startswith("### ")}
    assert groups <= {
        f"### {name}" for name in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }


def test_an_entry_of_the_changelog_has_at_most_two_lines() -> None:
    entries = "\n".join((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()).split("\n- ")[1:]
    long = [entry for entry in entries if len(entry.split("\n\n")[0].splitlines()) > 2]
    assert len(entries) >= 20
    assert long == []
    assert max(len(line) for entry in entries for line in entry.splitlines()) <= 160
