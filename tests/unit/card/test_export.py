"""A run as one HTML file: whole, harmless, within bounds, and said in one sentence when it cannot be made."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
from card_runs import run_events, saved_file, written

from llm_sandbox_nb import export_html
from llm_sandbox_nb.card import export
from llm_sandbox_nb.card.bundle import Caps
from llm_sandbox_nb.cli import main
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.trajectory.trajectory import Trajectory

HOSTILE = '</script><script>alert(1)</script><!--<script>{x} \u2028 "'


class Reader(html.parser.HTMLParser):
    """The elements of a page with their attributes, and the text of each script, as a browser splits them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data

    @property
    def run(self) -> dict[str, Any]:
        bundle: dict[str, Any] = json.loads(self.scripts[0])
        return bundle


@pytest.fixture(autouse=True)
def assets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's script and style are built with Node; these tests are about what is around them."""
    monkeypatch.setattr(export, "_asset", lambda name: f"/* {name} */")
    monkeypatch.setattr(export, "has_view", lambda: True)


def make_run(folder: Path, task: str = "Draw.", observation: str = "done") -> Run:
    folder.mkdir(exist_ok=True)
    files = [saved_file(folder, "small.txt", b"hello"), saved_file(folder, "large.bin", b"x" * 5000)]
    events = run_events(2, output=observation)
    started = events[0].model_copy(update={"task": task})
    return Run(folder, Trajectory([started, *events[1:-1], *files, events[-1]]))


def test_the_file_holds_the_record_and_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run.to_html(tmp_path / "run.html")
    page = Reader(path.read_text("utf-8"))
    kept = [event["id"] for event in page.run["events"] if event["kind"] not in ("step.facts", "doubts")]
    assert kept == [event.id for event in run.trajectory.events]
    assert page.run["artifacts"]["small.txt"]["text"] == "hello"
    assert page.run["text_limit"] is None
    assert not list(tmp_path.glob("*.partial"))


def test_the_file_holds_the_licences_of_the_libraries_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"LICENSES.txt": "marked 1.0 (MIT)\n\nCopyright <someone@example.org></pre><b>"}
    monkeypatch.setattr(export, "_asset", lambda name: texts.get(name, ""))
    text = make_run(tmp_path / "run").to_html(tmp_path / "run.html").read_text("utf-8")
    assert "<pre>marked 1.0 (MIT)\n\nCopyright &lt;someone@example.org&gt;&lt;/pre&gt;&lt;b&gt;</pre>" in text
    assert [tag for tag, _ in Reader(text).elements if tag in ("details", "b")] == ["details"]


def test_nothing_in_the_run_ends_the_script_or_the_title(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", HOSTILE, HOSTILE)
    page = Reader(export_html(run, tmp_path / "run.html").read_text("utf-8"))
    assert len(page.scripts) == 2
    assert page.run["events"][0]["task"] == HOSTILE
    assert HOSTILE in [event.get("observation") for event in page.run["events"]]


def test_without_the_escape_the_same_run_would_bring_a_script_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "json_for_script", lambda value: json.dumps(value, ensure_ascii=False))
    run = make_run(tmp_path / "run", HOSTILE)
    page = Reader(export_html(run, tmp_path / "run.html").read_text("utf-8"))
    assert page.scripts[1] == "alert(1)"


def test_the_policy_comes_before_anything_that_could_load(tmp_path: Path) -> None:
    page = Reader(export_html(make_run(tmp_path / "run"), tmp_path / "run.html").read_text("utf-8"))
    tags = [(tag, attributes.get("http-equiv")) for tag, attributes in page.elements]
    assert tags[:4] == [("html", None), ("head", None), ("meta", None), ("meta", "Content-Security-Policy")]
    policy = page.elements[3][1]["content"] or ""
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert "*" not in policy
    assert not [attributes for _, attributes in page.elements if "src" in attributes or "href" in attributes]


def test_files_over_the_bounds_are_left_out_and_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = Reader(export_html(run, tmp_path / "x.html", Caps(artifact=100, run=1000)).read_text("utf-8"))
    left_out = page.run["artifacts"]["large.bin"]
    assert "data" not in left_out
    assert left_out["size"] == 5000
    assert "larger" in left_out["omitted"]


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "a\ud800b")
    assert Reader(export_html(run, tmp_path / "x.html").read_text("utf-8")).run["events"]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(export.ExportError, match=r"cannot be written \(.+\): choose another file\.$"):
        export_html(make_run(tmp_path / "run"), tmp_path / "run")


@pytest.fixture
def no_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation from source without Node."""
    monkeypatch.undo()
    monkeypatch.setattr(export, "files", lambda package: tmp_path)


@pytest.mark.usefixtures("no_view")
def test_without_the_view_the_page_is_the_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "Draw <b>it</b>.", observation="done by hand")
    path = export_html(run, tmp_path / "run.html")
    page = Reader(path.read_text("utf-8"))
    assert not page.scripts
    policy = next(attributes for tag, attributes in page.elements if "http-equiv" in attributes)
    assert (policy["content"] or "").startswith("default-src 'none';")
    text = path.read_text("utf-8")
    for part in ("Submitted", "Draw &lt;b&gt;it&lt;/b&gt;.", "echo 2", "small.txt"):
        assert part in text


@pytest.mark.usefixtures("no_view")
def test_without_the_view_the_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "run", run_events(1))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "a.html")]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(tmp_path / "a.html")
    assert "make labextension" in told.err
    main(["doctor"])
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("view ")]
    assert "make labextension" in line


def test_doctor_says_that_the_view_works(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    assert "view        works" in capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "run", run_events(1))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "a.html")
    assert Reader((tmp_path / "a.html").read_text("utf-8")).run["run_id"] == "r1"
    assert main(["export", str(tmp_path / "run" / "journal.jsonl")]) == 0
    assert (tmp_path / "run" / "run.html").is_file()


@pytest.mark.parametrize(
    "words", [["nowhere"], ["run", "--out", "run/journal.jsonl/page.html"], ["run", "--ou", "x"]]
)
def test_the_command_says_in_one_sentence_what_is_wrong(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run", run_events(1))
    assert main(["export", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
