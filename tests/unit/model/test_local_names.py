"""Names of local models: what each means, what the table says, and what is said of a name that means nothing."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from llm_sandbox_nb.model.contract import Checkable, KnowsContext, Model, ModelError, Recalls, ServedHere
from llm_sandbox_nb.model.local import listing, source
from llm_sandbox_nb.model.local.listing import local_models, models_json, models_text
from llm_sandbox_nb.model.local.loading_progress import LineWriter, Share, shown_by
from llm_sandbox_nb.model.local.source import ListedSource, PathSource, find_source
from llm_sandbox_nb.model.local.store import FOLDER_VARIABLE
from llm_sandbox_nb.model.local.table import MODELS
from llm_sandbox_nb.model.model_names import make_model, model_names


def test_a_local_model_is_one_without_any_import_of_its_engine(tmp_path: Path) -> None:
    model = make_model(f"local/{tmp_path}/m.gguf")
    for kind in (Model, Checkable, KnowsContext, Recalls, ServedHere):
        assert isinstance(model, kind)
    assert not model.scripted


def test_each_model_of_the_table_is_whole() -> None:
    for name, model in MODELS.items():
        assert name == model.name == name.lower()
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert model.size < model.memory
        assert model.licence == "Apache-2.0"
        assert all("==" in part.requirement for part in model.parts), "pip may take no other release"
        assert find_source(name.upper()) == ListedSource(model)


@pytest.mark.parametrize("name", ["m.gguf", "./m", "~/m.gguf", "folder/m.gguf", "/a/m.GGUF"])
def test_what_looks_like_a_path_is_one(name: str) -> None:
    found = find_source(name)
    assert isinstance(found, PathSource)
    assert found.path == Path(name).expanduser().absolute()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen", "did you mean local/qwen2.5-coder-1.5b?"),
        ("zzz", "`llm-sandbox-nb models` lists"),
        ("", "no local model"),
    ],
)
def test_another_name_gets_a_hint(name: str, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        make_model(f"local/{name}")
    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


def test_an_address_beside_a_local_model_is_refused_with_both_ways_out() -> None:
    with pytest.raises(
        ModelError, match=r"leave out http://here/v1, or write openai/local/qwen2.5-coder-1.5b"
    ):
        make_model("local/qwen2.5-coder-1.5b", api_base="http://here/v1")


def test_names_are_offered() -> None:
    assert [f"local/{name}" for name in MODELS] == model_names("local/", {})
    assert "local/smollm2-135m" in model_names("lo", {})


def test_the_list_says_what_each_needs_and_whether_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(source, "installed_file", lambda part: None)
    assert [one["fetched"] for one in models_json()] == [False] * len(MODELS)
    for model in MODELS.values():
        assert model.sha256 in models_text()
        assert model.title in models_text()
    target = ListedSource(MODELS["smollm2-135m"]).target
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")
    assert {one["name"]: one["fetched"] for one in models_json()}["local/smollm2-135m"]


def test_without_the_extra_the_list_and_doctor_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'llm-sandbox-nb[local]'" in models_text()
    assert "pip install 'llm-sandbox-nb[local]'" in local_models()
    with pytest.raises(ModelError, match=r"pip install 'llm-sandbox-nb\[local\]'"):
        listing.fetch_model("smollm2-135m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_takes_one_line_of_a_terminal_and_few_of_a_file() -> None:
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        write = LineWriter(out)
        for line in ("Fetching m: 0 %", "Fetching m: 1 %", "Loading m: 0 s", ""):
            write(line)
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    assert file.getvalue() == "Fetching m: 0 %\nLoading m: 0 s\n"


def test_each_percentage_is_shown_once() -> None:
    shown: list[str] = []
    token = shown_by.set(shown.append)
    try:
        share = Share("Fetching m", 1000)
        for done in (0, 1, 9, 10, 11, 990, 1000, 1001):
            share.reached(done)
    finally:
        shown_by.reset(token)
    assert shown == [f"Fetching m: {percent} %" for percent in (0, 1, 99, 100)]
