"""What of the host the inside is shown, decided without starting anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_sandbox_nb.sandbox.bubblewrap.launch import explanation
from llm_sandbox_nb.sandbox.bubblewrap.view import Python, View, build_view, running_python, why_unusable


def view(python: Python, **options: object) -> View:
    settings: dict[str, object] = {
        "profile": "strict",
        "root": "/testbed",
        "open_network": False,
        "many_users": True,
    }
    return build_view(**{**settings, "python": python, "memory": 2**30, **options})  # type: ignore[arg-type]


def test_of_the_home_folder_only_the_python_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, prefix = tmp_path / "home", tmp_path / "home/me/envs/work"
    (prefix / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home / "me"))
    python = Python(str(prefix / "bin/python3.11"), (str(prefix),), (), (), "3.11.1")
    shown = view(python).shown
    assert [path for path in shown if path.startswith(str(home))] == [str(prefix)]
    assert why_unusable(python, read_by_others=False) == ""


@pytest.mark.parametrize("folder", ["/", "/home", "/home/me"])
def test_a_python_that_would_show_the_home_folder_is_not_used(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    python = Python("/usr/bin/python3", (folder,))
    assert "holds the whole home folder" in why_unusable(python, read_by_others=False)


def test_an_environment_around_your_work_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m venv .` makes one: its folder is the folder of the project."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    python = Python(str(tmp_path / "bin/python3"), (str(tmp_path),))
    assert "in which you work" in why_unusable(python, read_by_others=False)


def test_a_python_that_others_cannot_read_is_of_no_use_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    python = Python(sys.executable, (str(tmp_path),))
    assert "is not readable for other users" in why_unusable(python, read_by_others=True)
    assert why_unusable(python, read_by_others=False) == ""


@pytest.mark.parametrize(("mode", "said"), [(0o755, False), (0o750, True), (0o744, True)])
def test_a_program_that_others_cannot_start_is_of_no_use_to_them(
    tmp_path: Path, mode: int, said: bool
) -> None:
    program = tmp_path / "python3"
    program.touch(mode)
    program.chmod(mode)
    python = Python(str(program), ())
    words = f"{program} is not readable for other users" if said else ""
    assert why_unusable(python, read_by_others=True) == words
    assert why_unusable(python, read_by_others=False) == ""


def test_secrets_of_the_system_are_not_shown() -> None:
    shown = {*view(running_python()).shown}
    for secret in (
        "/etc",
        "/etc/shadow",
        "/etc/passwd",
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc/pip.conf",
        "/etc/ssh",
    ):
        assert secret not in shown
    for folder in ("/home", "/root", "/var", "/opt", "/srv", "/mnt", "/run", "/boot", "/sys", "/tmp"):
        assert folder not in shown
    assert "/usr" in shown


def test_names_are_looked_up_only_with_a_network() -> None:
    closed, opened = (view(running_python(), open_network=choice) for choice in (False, True))
    assert {*opened.shown} - {*closed.shown} == {"/etc/resolv.conf"}


@pytest.mark.parametrize("profile", ["standard", "strict"])
@pytest.mark.parametrize("memory", [64 * 2**20, 2**31, None])
def test_full_folders_leave_memory_for_processes(profile: str, memory: int | None) -> None:
    sizes = view(running_python(), profile=profile, memory=memory).writable
    assert {"/testbed", "/tmp", "/home", "/root", "/run", "/dev/shm"} == set(sizes)
    assert sum(sizes.values()) + (memory or 2**32) // 64 < 0.9 * (memory or 2**32)


def test_nothing_of_a_sandbox_of_many_users_is_the_models_to_set_up() -> None:
    words = view(running_python(), many_users=True).arguments
    fixed = {words[i + 1] for i, word in enumerate(words) if word == "--remount-ro"}
    assert fixed == {"/", "/dev"}
    words = view(running_python(), many_users=False).arguments
    fixed = {words[i + 1] for i, word in enumerate(words) if word == "--remount-ro"}
    assert fixed == {"/", "/dev", "/etc"}


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: No permissions to create new namespace, likely because...", "user namespaces are"),
        ("bwrap: setting up uid map: Permission denied", "user namespaces are"),
        ("bwrap: Can't find source path /x: No such file or directory", ""),
    ],
)
def test_refusals_are_explained(said: str, meaning: str) -> None:
    assert meaning in explanation(said)
    assert bool(explanation(said)) == bool(meaning)
