"""What the paper's package and this one do differently is stated, with a reason, in docs/original-differences.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from original_package import SITUATIONS, Beside, problems, stated_differences


@pytest.mark.campaign
@pytest.mark.docker
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("docker_engine")
def test_each_difference_from_the_original_is_stated(
    seed_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = Beside(seed_python, tmp_path_factory.mktemp("beside"))
    for situation in SITUATIONS:
        situation(beside)
    points = beside.points
    assert len({point.id for point in points}) == len(points) >= 136
    same = sum(point.same for point in points)
    print(f"\n{len(points)} points: {same} the same, {len(points) - same} different")
    found = problems(points, stated_differences())
    assert not found, "\n".join(found)
