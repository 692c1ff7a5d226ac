"""Whose a container is, read from its labels and its names, and whether that process lives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llm_sandbox_nb.sandbox.docker.ownership import (
    ContainerOwner,
    _own,
    adopted_name,
    container_name,
    current_owner,
    labelled_name,
    owner_labels,
    owner_of,
)

OTHER = dataclasses.replace(current_owner(), host="0" * 12)


def listed(*names: str, **labels: str) -> dict[str, Any]:
    made = {**owner_labels("abc", 45.0, {}), "llm-sandbox-nb.owner": OTHER.token(), **labels}
    return {"Names": [f"/{name}" for name in names], "Labels": made}


def test_the_one_that_made_it_owns_it_until_another_adopts_it() -> None:
    assert owner_of(listed(container_name("abc"))) == OTHER
    assert owner_of(listed(container_name("abc"), adopted_name("abc"))) == current_owner()
    assert owner_of(listed(adopted_name("other"))) == OTHER, "the name of another sandbox says nothing"
    assert owner_of(listed("llm-sandbox-nb-abc_adopted_nonsense")) == OTHER


def test_an_added_label_outlives_an_adoption() -> None:
    name = labelled_name(f"/{container_name('abc')}", "fork-of", "0a" * 16)
    for present in (name, adopted_name("abc", name)):
        found = _own({"Id": "1", **listed(present)})
        assert found is not None
        assert found.labels["fork-of"] == "0a" * 16
    assert owner_of(listed(adopted_name("abc", name))) == current_owner()


def test_a_container_without_our_labels_is_not_ours() -> None:
    for labels in ({"llm-sandbox-nb.owner": "nonsense"}, {"llm-sandbox-nb.id": ""}):
        assert owner_of(listed(container_name("abc"), **labels)) is None
    assert owner_of({"Names": [f"/{adopted_name('abc')}"], "Labels": None}) is None
    assert owner_of({}) is None


def test_without_proc_an_owner_lives_in_every_time_zone_and_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    owner = current_owner()
    monkeypatch.setenv("TZ", "TST-9")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert not owner.is_dead()
    assert dataclasses.replace(owner, started="0" * 8).is_dead()


def test_an_owner_is_dead_only_where_that_is_certain() -> None:
    here = current_owner()
    assert not here.is_dead()
    assert ContainerOwner.parse(f"x {here.token()}") == here
    for changed, dead in (
        ({"started": "0" * 8}, True),
        ({"boot": "0" * 12}, True),
        ({"namespace": "0" * 8, "started": "0" * 8}, False),
        ({"host": "0" * 12, "boot": "0" * 12, "started": "0" * 8}, False),
    ):
        assert dataclasses.replace(here, **changed).is_dead() is dead, changed
