"""A live run in the oldest and newest JupyterLab and Notebook, on each ipykernel: stopped, paused, spoken to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_cells import pause_and_say, stop_ends_a_command_at_once
from playwright.sync_api import Page
from servers import FrontEnd, jupyter
from support import size
from versions import IPYKERNELS, ipykernel, oldest_front_ends

pytestmark = pytest.mark.campaign
AGES = ("oldest", "newest")
# Lab with each kernel. Notebook has the same session and the same view: with one kernel that is not Lab's default.
PAIRS = [((age, "lab"), version) for age in AGES for version in IPYKERNELS]
PAIRS = size([PAIRS[0], PAIRS[-1]], PAIRS)
PAIRS += [((age, "notebook"), version) for age, version in zip(AGES, IPYKERNELS, strict=False)]
NAMES = [f"{age}-{app}-{version}" for (age, app), version in PAIRS]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    age, app = request.param
    python = oldest_front_ends() if age == "oldest" else None
    with jupyter(tmp_path_factory.mktemp(f"{age}-{app}"), python=python) as running:
        for version in IPYKERNELS:
            running.add_kernel(f"ipykernel-{version}", ipykernel(version))
        yield FrontEnd(running, app)


@pytest.mark.parametrize(("server", "version"), PAIRS, indirect=["server"], ids=NAMES)
def test_stop_and_pause_and_say_in_a_busy_cell(server: FrontEnd, page: Page, version: str) -> None:
    kernel = f"ipykernel-{version}"
    stop_ends_a_command_at_once(server, page, kernel)
    assert kernel_version(page) == version
    oldest = {"lab": "4.4.", "notebook": "7.4."}[server.app]
    assert page.evaluate("() => jupyterapp.version").startswith(oldest) is server.jupyter.is_oldest
    pause_and_say(server, page, kernel)


def kernel_version(page: Page) -> str:
    found: str = page.evaluate(
        """async () => {
          const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const future = kernel.requestExecute({ code: 'import ipykernel; print(ipykernel.__version__)' });
          let text = '';
          future.onIOPub = message => { text += message.content.text ?? ''; };
          await future.done;
          return text.trim();
        }"""
    )
    return found
