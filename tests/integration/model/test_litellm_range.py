"""The oldest LiteLLM that pyproject.toml allows, in an environment of its own, passes the tests of the model.

The newest one is what a fresh `make test` installs and runs everything with. Other versions are checked with
`LLM_SANDBOX_LITELLM='1.95.0 1.104.5 1.109.1' python -m pytest tests/integration/model/test_litellm_range.py`.
Checked by hand in this way when the range was set: 1.95.0, 1.95.1, 1.100, 1.104, 1.105, 1.106.2, 1.109.1.
"""

import importlib.metadata
import os
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from llm_sandbox_nb.cli import FAILED, main
from llm_sandbox_nb.model.litellm_transport import COMPROMISED, backend

ROOT = Path(__file__).parents[3]
TESTS = [
    "integration/model/test_model_http.py",
    "integration/model/test_model_http_anthropic.py",
    "integration/model/test_model_http_long.py",
]


def requirement() -> Requirement:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(found for found in map(Requirement, dependencies) if found.name == "litellm")


def oldest() -> str:
    (floor,) = [bound.version for bound in requirement().specifier if bound.operator == ">="]
    return floor


def test_the_version_in_use_is_in_the_range_and_the_malicious_ones_are_not() -> None:
    allowed = requirement().specifier
    assert importlib.metadata.version("litellm") in allowed
    assert {bound.version for bound in allowed if bound.operator == "!="} == set(COMPROMISED)
    assert not [version for version in COMPROMISED if version in allowed]


@pytest.mark.parametrize("version", COMPROMISED)
def test_a_malicious_release_is_named_and_not_imported(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert main(["doctor"]) == FAILED
    assert f"litellm {version} is installed" in capsys.readouterr().err
    with pytest.raises(ImportError, match="malicious"):
        backend.__wrapped__()


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", os.environ.get("LLM_SANDBOX_LITELLM", oldest()).split())
def test_an_end_of_the_range_works(version: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = [
        f"litellm=={version}",
        "pydantic",
        "pyyaml",
        "pytest",
        "pytest-timeout",
        "hypothesis",
        "psutil",
    ]
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    found = run(python, "-c", "import importlib.metadata as m; print(m.version('litellm'))").strip()
    assert found in requirement().specifier
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    run(python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", *tests)


def run(python: Path, *arguments: str) -> str:
    """Run the environment's interpreter; its output, or a failure that shows it."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(
        [str(python), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(
            f"{' '.join(arguments[:4])} failed\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}", pytrace=False
        )
    return done.stdout
