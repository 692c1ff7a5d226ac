"""Tokens of sandboxes: hashed, of one sandbox, revocable, and of its notebook's next one."""

from __future__ import annotations

import stat
from pathlib import Path

from llm_sandbox_nb.server.mcp_grants import McpGrants


def test_a_token_is_kept_as_its_hash_and_survives_the_server(tmp_path: Path) -> None:
    file = tmp_path / "tokens" / "a.json"
    token = McpGrants(file).mint("box1", "a.ipynb")
    assert token not in file.read_text()
    assert token.removeprefix("lsnb_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = McpGrants(file).find(token)
    assert found is not None
    assert found.sandbox_id == "box1"


def test_only_the_token_itself_opens(tmp_path: Path) -> None:
    grants = McpGrants(tmp_path / "a.json")
    token = grants.mint("box1", None)
    wrong = (
        "",
        "lsnb_",
        token[:-1],
        token + "x",
        token.upper(),
        token.removeprefix("lsnb_"),
        "lsnb_" + "é" * 50,
    )
    for one in wrong:
        assert grants.find(one) is None, one
    assert grants.find(token) is not None


def test_a_new_token_revokes_the_one_before_and_says_so(tmp_path: Path) -> None:
    grants, revoked = McpGrants(tmp_path / "a.json"), list[str]()
    grants.on_revoked = revoked.append
    first = grants.mint("box1", "a.ipynb")
    old = grants.find(first)
    second = grants.mint("box1", "a.ipynb")
    assert grants.find(first) is None
    assert old is not None
    assert revoked == [old.name]
    assert grants.revoke("box1")
    assert not grants.revoke("box1")
    assert grants.find(second) is None


def test_it_is_of_the_next_sandbox_of_the_same_notebook_only(tmp_path: Path) -> None:
    grants = McpGrants(tmp_path / "a.json")
    token, other = grants.mint("box1", "a.ipynb"), grants.mint("box9", None)
    assert grants.keep("box2", "b.ipynb") is None
    assert grants.keep("box3", None) is None
    assert grants.keep("box2", "a.ipynb") is not None
    found, unchanged = grants.find(token), grants.find(other)
    assert found is not None
    assert unchanged is not None
    assert (found.sandbox_id, unchanged.sandbox_id) == ("box2", "box9")


def test_a_renamed_notebook_keeps_its_token_and_a_new_one_with_its_path_does_not_get_it(
    tmp_path: Path,
) -> None:
    grants = McpGrants(tmp_path / "a.json")
    token, living = grants.mint("box1", "a.ipynb"), {"box1"}
    grants.lives = living.__contains__
    assert grants.keep("box2", "a.ipynb") is None
    grants.mint("box2", "a.ipynb")
    assert grants.keep("box1", "b.ipynb") is not None
    living.clear()
    assert grants.keep("box3", "b.ipynb") is not None
    found = grants.find(token)
    assert found is not None
    assert found.sandbox_id == "box3"


def test_one_that_nobody_uses_ends_and_a_damaged_file_opens_nothing(tmp_path: Path) -> None:
    file, now = tmp_path / "a.json", [0.0]
    token = McpGrants(file, lambda: now[0]).mint("box1", None)
    now[0] = 91 * 24 * 3600.0
    assert McpGrants(file, lambda: now[0]).find(token) is None
    for damaged in ("", "[]", "{}", "[1]", '[{"name": 1}]', "\x00"):
        file.write_text(damaged)
        assert McpGrants(file).find(token) is None
