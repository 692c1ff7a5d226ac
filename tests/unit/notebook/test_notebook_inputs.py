"""`-i`: files, folders and variables become files for the sandbox, or one clear sentence."""

from __future__ import annotations

import datetime
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from llm_sandbox_nb.agent.errors import InputError
from llm_sandbox_nb.agent.inputs import check_inputs
from llm_sandbox_nb.notebook.errors import SandboxInputError
from llm_sandbox_nb.notebook.inputs import collect_inputs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_files_folders_and_patterns(here: Path) -> None:
    (here / "a b.csv").write_text("1")
    (here / "photos" / "deep").mkdir(parents=True)
    (here / "photos" / "x.png").write_text("2")
    (here / "photos" / "deep" / "ü.png").write_text("3")
    found = collect_inputs(["a b.csv", "photos/", "p*/x.png"], {})
    assert found == {
        "a b.csv": Path("a b.csv"),
        "photos": here / "photos",
        "x.png": Path("photos/x.png"),
    }


def test_a_file_whose_name_begins_like_a_home_folder(here: Path) -> None:
    """Office programs keep such a file beside each open document."""
    (here / "~$a.csv").write_text("1")
    assert collect_inputs(["~$a.csv"], {}) == {"~$a.csv": Path("~$a.csv")}
    assert check_inputs(["~$a.csv"]).found == ("~$a.csv",)
    with pytest.raises(SandboxInputError, match="There is no file or folder '~nobody-of-this-name/x'"):
        collect_inputs(["~nobody-of-this-name/x"], {})


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, None, True]}, {"a": [1, None, True]}),
        ([1.5, "ü"], [1.5, "ü"]),
        (7, 7),
        (None, None),
        ({3, 1}, [1, 3]),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ({"point": Point(1, 2)}, {"point": {"x": 1, "y": 2}}),
        ({"path": Path("a/b")}, {"path": "a/b"}),
    ],
)
def test_values_become_json(here: Path, value: Any, expected: Any) -> None:
    found = collect_inputs(["value"], {"value": value})
    assert json.loads(found["value.json"]) == expected


def test_values_of_numpy_become_json(here: Path) -> None:
    import numpy as np  # not at collection: each worker would spend time on it

    found = collect_inputs(["value"], {"value": {"list": np.arange(3), "n": np.float64(2.5)}})
    assert json.loads(found["value.json"]) == {"list": [0, 1, 2], "n": 2.5}


def test_text_and_bytes_stay_what_they_are(here: Path) -> None:
    found = collect_inputs(["t", "b"], {"t": "a\r\nü", "b": b"\x00\xff"})
    assert found["t.txt"] == "a\r\nü".encode()
    assert found["b.bin"] == b"\x00\xff"


def test_a_frame_becomes_a_table(here: Path) -> None:
    import pandas as pd  # not at collection: each worker would spend half a second on it

    frame = pd.DataFrame({"city": ["Tokyo", "Delhi"], "n": [1, 2]})
    found = collect_inputs(["frame"], {"frame": frame})
    assert found["frame.csv"] == b"city,n\nTokyo,1\nDelhi,2\n"
    indexed = collect_inputs(["frame"], {"frame": frame.set_index("city")})
    assert indexed["frame.csv"] == b"city,n\nTokyo,1\nDelhi,2\n"
    parquet = collect_inputs(["frame"], {"frame": frame}, frame_format="parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(parquet["frame.parquet"])), frame)
    series = collect_inputs(["n"], {"n": frame["n"]})
    assert series["n.csv"] == b"n\n1\n2\n"


def test_a_variable_may_hold_a_path(here: Path) -> None:
    (here / "data.bin").write_bytes(b"1")
    assert list(collect_inputs(["where"], {"where": Path("data.bin")})) == ["data.bin"]


def refuse(names: list[str], namespace: dict[str, Any]) -> str:
    with pytest.raises(SandboxInputError) as caught:
        collect_inputs(names, namespace)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_what_is_not_there_is_named(here: Path) -> None:
    assert "no file, folder or variable 'nope'" in refuse(["nope"], {})
    assert "no file or folder 'nope.csv'" in refuse(["nope.csv"], {})
    assert "no file or folder '*.zip'" in refuse(["*.zip"], {})
    assert "no file or folder 'gone'" in refuse(["where"], {"where": Path("gone")}).replace(
        "file, folder or variable", "file or folder"
    )


def test_an_empty_name_does_not_give_the_working_folder_to_the_model(here: Path) -> None:
    (here / "private.txt").write_text("1")
    assert "empty name" in refuse([""], {})
    for inputs in ("", [""], {"data": ""}):
        with pytest.raises(InputError, match="empty name"):
            check_inputs(inputs)
    assert collect_inputs(["."], {}) == {"here": here}


def test_what_is_ambiguous_or_no_file_is_refused(here: Path) -> None:
    for name in ("a/x", "b/x", "data"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("file")
    assert "Two inputs are called 'x'" in refuse(["a/x", "b/x"], {})
    assert "./data" in refuse(["data"], {"data": 1})
    assert collect_inputs(["./data"], {"data": 1})["data"].read_text() == "file"
    assert "'thing' (object)" in refuse(["thing"], {"thing": object()})
    loop: list[Any] = []
    loop.append(loop)
    assert "'loop' (list)" in refuse(["loop"], {"loop": loop})


def test_a_folder_without_files_and_what_is_neither_file_nor_folder_are_refused(here: Path) -> None:
    (here / "folder").mkdir()
    assert "has no files" in refuse(["folder"], {})
    (here / "folder" / "link").symlink_to("nowhere")
    assert collect_inputs(["folder"], {}) == {"folder": here / "folder"}
    assert "neither a file nor a folder" in refuse(["folder/*"], {})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


@settings(max_examples=examples(60))
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), json_values))
def test_any_json_value_comes_back(value: dict[str, Any]) -> None:
    found = collect_inputs(["value"], {"value": value})
    assert json.loads(found["value.json"]) == value


def test_a_name_that_cannot_be_a_file_is_one_sentence() -> None:
    with pytest.raises(SandboxInputError, match="cannot be read"):
        collect_inputs(["x" * 5000], {})
