"""Requests, replies and errors of 500 dialogues with model servers are those of the record."""

from model_dialogues import differences, play, recorded


def test_the_dialogues_are_those_of_the_record() -> None:
    assert list(differences(recorded(), play())) == []
