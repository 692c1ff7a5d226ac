"""Whatever the model, its files or its commands say, a card stays static: nothing runs, nothing loads."""

from __future__ import annotations

import html
import time
from pathlib import Path

import pytest
from card_checks import not_static, read
from card_runs import PROTECTION, saved_file
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples, held_by

from llm_sandbox_nb.card import text as card_text
from llm_sandbox_nb.card.card import Card
from llm_sandbox_nb.card.text import markdown_html
from llm_sandbox_nb.trajectory import events as ev

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></div><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    '" onfocus="alert(1)" autofocus="',
    "</style><svg onload=alert(1)>",
    "</summary></details><iframe src=https://evil.example>",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "<javascript:alert(1)>",
    "[x]: javascript:alert(1)\n[x]",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
    "\x1b[31m<b onclick=alert(1)>",
    "<!-- -->--><script>",
    "<![CDATA[<script>alert(1)</script>",
    "| a | b |\n|---|---|\n| <script> | ' onclick=' |",
    "```html\n<script>alert(1)</script>\n```",
]
texts = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=60), st.lists(st.sampled_from(HOSTILE)).map("".join)
)
names = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=30)


def hostile_events(text: str) -> list[ev.Event]:
    """A run in which everything that somebody else writes is `text`."""
    arguments = {"command": text, "path": text, text: text}
    diff = f"--- {text}\n+++ {text}\n@@ -1 +1 @@ {text}\n-{text}\n+{text}\n"
    change = ev.FileDiff(path=text, kind="modified", size=3, diff=diff, note=text)
    protection = {**PROTECTION, "user": text, "network": text, "protects": text, "details": {text: text}}
    return [
        ev.RunStarted(run_id=text, task=text, model=text, scripted=True),
        ev.SandboxReady(sandbox_id=text, protection=protection, start_time=0.1, root=text),
        ev.SettingsChanged(model=text),
        ev.ModelFailed(step=1, attempt=1, error=text, message=text, retry_in=1.0),
        ev.ModelReplied(step=1, message={"role": "assistant", "content": text}, reasoning=text),
        ev.CallProposed(step=1, call_id="a", tool=text, raw_arguments=text, arguments=None),
        ev.CallProposed(step=1, call_id="c", tool="str_replace_editor", raw_arguments=text, arguments=arguments),
        ev.CallProposed(step=1, call_id="b", tool="execute_bash", raw_arguments=text, arguments=arguments),
        ev.CallHeld(step=1, call_id="b", at="call", reason="breakpoint", text=text),
        ev.CallDecided(step=1, call_id="b", action="edit", tool=text, arguments=arguments, source=text),
        ev.CallStarted(step=1, call_id="b", tool="execute_bash", arguments=arguments),
        ev.CallOutput(call_id="b", stream="stdout", text=text),
        ev.CallFinished(
            step=1, call_id="b", observation=text, error=text, stdout=text, stderr=text, notice=text,
            changes=[change], changes_incomplete=text,
        ),
        ev.CallDecided(step=1, call_id="b", action="observe", observation=text, original=text, source=text),
        ev.CallFinished(step=1, call_id="c", observation=text, exit_code=1, stderr=text + "\nlast: " + text),
        ev.ArtifactSaved(step=1, path=text, mime=text, size=1, sha256="0" * 64),
        ev.ArtifactSkipped(reason=text),
        ev.Noted(text=text),
        ev.ModelDelta(step=2, text=text, reasoning=text),
        ev.RunFinished(stop_reason="error", answer=text, error=text),
    ]  # fmt: skip


def pages(events: list[ev.Event]) -> list[str]:
    """The card's page after each event, and the final one."""
    card, shown = Card(), []
    for event in events:
        card.add(event)
        shown.append(card.live()["text/html"])
    return [*shown, card.final()["text/html"]]


@settings(max_examples=examples(150))
@given(texts)
def test_a_card_is_static_whatever_it_is_told(text: str) -> None:
    for page in pages(hostile_events(text)):
        assert not not_static(page)
        assert "<script" not in page.lower()


@settings(max_examples=examples(150))
@given(st.one_of(texts, st.text(alphabet="[](){}<>!`*_#|&;:'\"/\\ \n\tjavscript", max_size=80)))
def test_markdown_is_static(text: str) -> None:
    assert not not_static(markdown_html(text))


def test_the_check_fires_when_escaping_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_text.html, "escape", lambda text, quote=True: text)
    found = {
        problem for text in HOSTILE for page in pages(hostile_events(text)) for problem in not_static(page)
    }
    assert {"tag script", "img has onerror", "tag svg", "frame None"} <= found


@pytest.mark.parametrize(
    "suffix", ["html", "svg", "csv", "tsv", "json", "md", "txt", "mid", "pdf", "png", "bin", "wav"]
)
def test_artifacts_of_every_kind_are_static(tmp_path: Path, suffix: str) -> None:
    for text in HOSTILE:
        card = Card(folder=tmp_path)
        name = f"{text.replace('/', '_')}.{suffix}"
        card.add(saved_file(tmp_path, name, text.encode(), mime=text))
        page = card.final()["text/html"]
        assert not not_static(page), text
        assert "<script" not in page.lower()


@settings(max_examples=examples(100))
@given(names)
def test_names_of_files_are_shown_as_they_are(name: str) -> None:
    from llm_sandbox_nb.card.artifact_html import artifact_html
    from llm_sandbox_nb.card.artifacts import Artifact

    page = artifact_html(Artifact(name + ".txt", "text/plain", 1, b"x", href=f"runs/{name}.txt"))
    assert not not_static(page)
    assert card_text.plain(name + ".txt") in "".join(read(page).text)


def test_a_frame_holds_the_document_twice_wrapped() -> None:
    from llm_sandbox_nb.card.frame import POLICY, sandboxed_frame

    document = b"<p id='x'>&amp; <b>hi</b></p></script><script>"
    frame = sandboxed_frame(document)
    outer = read(frame).frames
    assert [frame["sandbox"] for frame in outer] == ["allow-scripts"]
    page = outer[0]["srcdoc"] or ""
    assert html.escape(POLICY, quote=False) in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert "hi" not in read(page).text
    assert held_by(f"</figcaption>{frame}") == document
    assert "frame-src 'none'" in POLICY
    assert "default-src 'none'" in POLICY


@pytest.mark.parametrize(
    "text", ["\x90" * 200_000 + "\x1bA", "\x1b]" * 100_000, ("\x90" * 50_000 + "\x1b") * 4]
)
def test_hostile_control_sequences_take_no_time(text: str) -> None:
    begun = time.process_time()
    assert set(card_text.plain(text)) <= set("A")
    assert time.process_time() - begun < 10


def test_a_control_string_ends_at_the_next_escape() -> None:
    assert card_text.plain("a\x1b]0;title\x1b[31mb\x1b]8;;x\x1b\\c\x1b]0;open") == "abc"
