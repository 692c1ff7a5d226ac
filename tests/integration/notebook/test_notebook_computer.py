"""The scripted models of the notebook about the computer cope with what a computer lacks: sympy, or the network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.runs.solve import solve
from llm_sandbox_nb.sandbox.open import open_sandbox

ANSWER = "The integral is 22/7 - pi = 0.00126449. It is positive, so 22/7 is larger than pi."


def without(files: dict[str, bytes], model: str, isolation: str, folder: Path, **options: str) -> Run:
    """What the model does where these files of the working directory hide installed modules."""

    async def run() -> Run:
        async with open_sandbox(isolation, **options) as box:
            for name, content in files.items():
                await box.write_file(name, content)
            return await solve("x", model=model, sandbox=box, isolation=isolation, output_dir=folder)

    return asyncio.run(run())


@pytest.mark.parametrize("hidden", [False, True])
def test_the_integral_is_exact_with_sympy_and_without(
    hidden: bool, some_isolation: str, tmp_path: Path
) -> None:
    files = {"sympy.py": b"raise ImportError\n"} if hidden else {}
    run = without(files, "scripted/exact-integral", some_isolation, tmp_path)
    assert (run.stop_reason, run.answer) == ("submitted", ANSWER)
    assert "-9.4235" in run.steps[2].calls[1].output, "the mistake that the model notices"
    told = run.steps[1].calls[0].output
    assert ("sympy: not here" in told) is hidden
    assert ("sympy: 22/7 - pi" in told) is not hidden


@pytest.mark.bubblewrap
def test_without_a_network_the_chemist_says_so_and_invents_nothing(
    bubblewrap_engine: None, tmp_path: Path
) -> None:
    run = without({}, "scripted/isotopes", "bubblewrap", tmp_path, network="none")
    assert run.stop_reason == "submitted"
    assert run.answer == (
        "No answer: the library molmass could not be installed; the sandbox may have no internet."
    )


STAND_IN = b"""\
class Peak:
    def __init__(self, massnumber, fraction):
        self.massnumber, self.fraction = massnumber, fraction


class Formula:
    mass, monoisotopic_mass = 180.16, 180.0423

    def __init__(self, formula):
        assert formula == "C9H8O4"

    def spectrum(self):
        return {180: Peak(180, 0.9), 181: Peak(181, 0.09)}
"""
"""The part of molmass that the model uses: the tests need no package index."""


@pytest.mark.bubblewrap
def test_with_the_library_the_chemist_corrects_a_guessed_name(
    bubblewrap_engine: None, tmp_path: Path
) -> None:
    run = without(
        {"libraries/molmass.py": STAND_IN}, "scripted/isotopes", "bubblewrap", tmp_path, network="none"
    )
    assert "has no attribute 'exact_mass'" in run.steps[1].calls[1].output
    assert "monoisotopic_mass" in run.steps[2].calls[0].output
    assert run.answer == (
        "Aspirin has 180.16 g/mol. Most of its molecules weigh 180.0423 u; for every 100 of them, "
        "10.0 have a mass number that is larger by one."
    )
