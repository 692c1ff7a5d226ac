"""A pause where there is no server: the person is asked in the cell, or what the cell says is done."""

from __future__ import annotations

from pathlib import Path

from live_kernel import live_kernel
from support import PATIENCE

SCRIPT = """
turns:
  - calls: [{tool: execute_bash, arguments: {command: "until [ -e GO ]; do sleep 0.05; done"}}]
  - calls: [{tool: execute_bash, arguments: {command: "echo second"}}]
  - calls: [{tool: submit}]
"""
LATER = """
import pathlib, threading, time
go = pathlib.Path('go')
go.unlink(missing_ok=True)
globals().pop('run', None)
def pause_later():
    while 'run' not in globals() or not any(e.kind == 'call.started' for e in run.trajectory.events):
        time.sleep(0.02)
    run.pause()
    go.touch()
def resume_later():
    while 'run' not in globals() or not run.trajectory.paused:
        time.sleep(0.02)
    run.resume()
threading.Thread(target=pause_later).start()
"""
TOLD = "print(run.stop_reason, [(e.action, e.source) for e in run.trajectory.controls])"
CELL = "%%sandbox -m scripted/./script.yaml --isolation process -o run {}\nWork."
BEGIN = "[('pause', 'python'), ('paused', 'run'), "
STOPPED, RESUMED = f"interrupted {BEGIN}('stop', 'cell')]", f"submitted {BEGIN}('resume', 'cell')]"
BY_RULE = {told: told.replace("'cell'", "'on_pause'") for told in (STOPPED, RESUMED)}


def test_nobody_or_somebody_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT.replace("GO", str(tmp_path / "go")))
    with live_kernel(tmp_path) as kernel:
        for options, said, told in (
            ("--on-pause go", None, BY_RULE[RESUMED]),
            ("--on-pause stop", None, BY_RULE[STOPPED]),
            ("", None, BY_RULE[STOPPED]),
            ("--on-pause wait", None, f"submitted {BEGIN}('resume', 'python')]"),
            ("", "", RESUMED),
            ("", "stop", STOPPED),
            ("", "Be quick.", f"submitted {BEGIN}('say', 'cell'), ('resume', 'cell')]"),
        ):
            python = "threading.Thread(target=resume_later).start()" if "wait" in options else ""
            kernel.run(LATER + python)
            cell = str(kernel.client.execute(CELL.format(options), allow_stdin=said is not None))
            if said is not None:
                question = kernel.client.get_stdin_msg(timeout=PATIENCE)
                assert "The run is paused" in question["content"]["prompt"]
                kernel.client.input(said)
            kernel.messages(cell)
            assert kernel.printed(TOLD).strip() == told, (options, said)
