"""Keys: cleaned or refused without being repeated, and taken out of texts."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb import known_keys
from llm_sandbox_nb.agent.recorder import Recorder
from llm_sandbox_nb.known_keys import (
    HIDDEN,
    KeyFilter,
    KeyTextError,
    clean_key,
    remember_address,
    remember_environment,
    remember_key,
    without_keys,
    without_keys_in,
)
from llm_sandbox_nb.trajectory.events import Blob, Noted
from llm_sandbox_nb.trajectory.journal import BLOB_THRESHOLD, Journal, load_text, read_journal

KEY = "sk-unit-0123456789"


@pytest.fixture(autouse=True)
def _no_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_known", set())


@pytest.mark.parametrize("around", ["{}", " {}", "{}\n", "\t{}\r\n", "\ufeff{}", "\u00a0{}\u200b"])
def test_blanks_around_a_key_are_left_out(around: str) -> None:
    assert clean_key(around.format(KEY), "it") == KEY
    assert without_keys(f"a {KEY} b") == f"a {HIDDEN} b"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is empty"), (" \n", "is empty"), ("sk-01 23456", "a blank or the end of a line"),
        ("sk-01\n23456", "a blank or the end of a line"), ("\u201csk-0123\u201d", "a curly quote"),
        ('"sk-0123"', "has quotes around"), ("sk-\u0435123", "one outside of ASCII"),
        ("sk-\x00123", "a control character"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_without_a_word_of_it(key: str, said: str) -> None:
    with pytest.raises(KeyTextError, match=f"VARIABLE .*{said}") as caught:
        clean_key(key, "VARIABLE")
    assert "123" not in str(caught.value)


@given(st.text(max_size=60))
def test_a_key_that_is_accepted_can_be_sent_in_a_header(text: str) -> None:
    try:
        key = clean_key(text, "it")
    except KeyTextError as error:
        key = str(error)
    assert key.isascii()
    assert key.isprintable()


def test_words_that_stand_for_a_key_stay_in_texts() -> None:
    for word in ("key", "EMPTY", "ollama", "lm-studio", "sk-no-key-required"):
        remember_key(word)
        assert without_keys(f"start {word}") == f"start {word}"


def test_keys_of_the_environment_are_known_by_their_variables() -> None:
    remember_environment({"SOME_API_KEY": KEY, "HF_TOKEN": "hf_0123456789", "HOME": "/home/someone"})
    assert without_keys(f"{KEY} hf_0123456789 /home/someone") == f"{HIDDEN} {HIDDEN} /home/someone"
    assert without_keys_in(f"\xe9{KEY}".encode()) == f"\xe9{HIDDEN}".encode()


def test_a_log_has_no_keys(caplog: pytest.LogCaptureFixture) -> None:
    remember_key(KEY)
    logger = logging.getLogger("a log of a test")
    logger.addFilter(KeyFilter())
    logger.warning("sent %s", KEY)
    assert caplog.messages == [f"sent {HIDDEN}"]
    try:
        raise ValueError(f"the header {KEY}")
    except ValueError:
        logger.exception("failed")
    assert f"the header {HIDDEN}" in caplog.text
    assert KEY not in caplog.text


def test_a_log_call_with_wrong_arguments_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", handled.append)
    remember_key(KEY)
    logger = logging.getLogger("another log of a test")
    logger.addFilter(KeyFilter())
    logger.addHandler(handler)
    logger.propagate = False
    logger.warning("%d files", "many")
    assert [record.msg for record in handled] == ["%d files"]


def test_a_key_that_begins_like_another_leaves_nothing_of_the_longer_one() -> None:
    for number in range(20):
        short = f"{KEY}-{number}-"
        longer = f"{short}tail-of-the-longer-key"
        remember_key(short)
        remember_key(longer)
        assert without_keys(f"a {longer} b") == f"a {HIDDEN} b"
        assert without_keys_in(longer.encode()) == HIDDEN.encode()


@pytest.mark.parametrize("before", range(1_980, 2_005, 5))
def test_the_preview_of_a_long_output_has_no_part_of_a_key(before: int, tmp_path: Path) -> None:
    """The preview begins with 2000 characters of the output, and its cut must not go through a key."""
    remember_key(KEY)
    journal = Journal(tmp_path)
    for stored in (
        journal.store_text("x" * before + KEY + "y" * BLOB_THRESHOLD),
        journal.store_bytes(b"x" * before + KEY.encode() + b"y" * BLOB_THRESHOLD),
    ):
        assert isinstance(stored, Blob)
        assert KEY[:4] not in stored.preview
        assert KEY not in load_text(tmp_path, stored)
    journal.close()


def test_a_password_with_marks_of_json_is_not_recorded(tmp_path: Path) -> None:
    remember_address("http://user:pa%22ss%5Cw%C3%B6rd@proxy")
    recorder = Recorder(tmp_path)
    recorder.emit(Noted(text='refused: pa"ss\\wörd'))
    recorder.close()
    (event,) = read_journal(tmp_path)
    assert isinstance(event, Noted)
    assert event.text == f"refused: {HIDDEN}"
