"""The faulty step of each planted fault is the cause: with that one call repaired, the result is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_faults import FOLDER, Fault, faults, play, wrong_file


def test_each_script_has_one_fault_and_each_fault_a_script() -> None:
    assert {fault.name for fault in faults()} == {path.stem for path in FOLDER.glob("*.yaml")} - {"faults"}
    assert len(faults()) == 30


# `make test` takes every third.
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.campaign] * (n % 3 > 0))
        for n, fault in enumerate(faults())
    ],
)
def test_the_faulty_step_is_the_cause(fault: Fault, tmp_path: Path) -> None:
    faulty, repaired = play(fault, tmp_path / "faulty"), play(fault, tmp_path / "repaired", repair=True)
    assert faulty.stop_reason == repaired.stop_reason == "submitted"
    assert wrong_file(fault, repaired) == fault.right
    assert wrong_file(fault, faulty) != fault.right
