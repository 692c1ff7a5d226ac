"""Requests, replies and errors of 500 dialogues with model servers are those of the record."""

import pytest
from model_dialogues import differences, play, recorded


def test_the_dialogues_are_those_of_the_record() -> None:
    played = play(every_variant=False)
    assert len(played) > 300
    assert (
        list(differences({name: dialogue for name, dialogue in recorded().items() if name in played}, played))
        == []
    )


@pytest.mark.campaign
def test_all_dialogues_are_those_of_the_record() -> None:
    assert list(differences(recorded(), play())) == []
