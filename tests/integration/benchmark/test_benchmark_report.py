"""The report in the docs is what the test run makes."""

from __future__ import annotations

from report_page import PAGE, TASKS, make, without_pictures

RENEW = "PYTHONPATH=. python tests/report_page.py"


def test_the_report_in_the_docs_is_made_by_this_run() -> None:
    page = make()
    assert page.count("<svg") == PAGE.read_text("utf-8").count("<svg") == 2
    assert all(f"<td>{task}</td>" in page for task in TASKS)
    different = f"docs/{PAGE.name} is not what `benchmark report` makes now: look at it after `{RENEW}`."
    assert without_pictures(page) == without_pictures(PAGE.read_text("utf-8")), different
