"""A live run in the oldest and newest JupyterLab and Notebook, on each ipykernel: stopped, paused, spoken to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_cells import pause_and_say, stop_ends_a_command_at_once
from playwright.sync_api import Page, expect
from servers import APPS, FrontEnd, front_end
from versions import IPYKERNELS, ipykernel, oldest_front_ends

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)
FRONT_ENDS = [(age, app) for age in ("oldest", "newest") for app in APPS]


@pytest.fixture(scope="module", params=FRONT_ENDS, ids=["-".join(one) for one in FRONT_ENDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    age, app = request.param
    python = oldest_front_ends() if age == "oldest" else None
    with front_end(tmp_path_factory.mktemp(f"{age}-{app}"), app, python=python) as running:
        for version in IPYKERNELS:
            running.add_kernel(f"ipykernel-{version}", ipykernel(version))
        yield running


@pytest.mark.parametrize("version", IPYKERNELS)
def test_stop_in_a_busy_cell(server: FrontEnd, page: Page, version: str) -> None:
    assert stop_ends_a_command_at_once(server, page, kernel=f"ipykernel-{version}") < 2
    assert kernel_version(page) == version
    oldest = {"lab": "4.4.", "notebook": "7.4."}[server.app]
    assert page.evaluate("() => jupyterapp.version").startswith(oldest) is server.is_oldest


@pytest.mark.parametrize("version", IPYKERNELS)
def test_pause_and_say_in_a_busy_cell(server: FrontEnd, page: Page, version: str) -> None:
    pause_and_say(server, page, kernel=f"ipykernel-{version}")


def kernel_version(page: Page) -> str:
    """The version of the ipykernel behind the page."""
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
