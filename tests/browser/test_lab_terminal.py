"""A terminal in a sandbox from the side panel, in JupyterLab and Notebook 7; what it prints is hostile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect
from servers import IN_FULL, FrontEnd, Jupyter, command, jupyter, open_notebook, show_panel
from support import own_mark, processes_with
from waiting import eventually

NAME = "work.ipynb"
WIDGET = "[...jupyterapp.shell.widgets('main'), ...jupyterapp.shell.widgets('down')]"
TERMINALS = f"{WIDGET}.map(one => one.content ?? one).filter(one => one._term)"
SCREEN = f"""() => {{
  const term = {TERMINALS}.at(-1)?._term;
  if (!term) return '';
  const buffer = term.buffer.active;
  return Array.from({{ length: buffer.length }}, (_, y) => buffer.getLine(y).translateToString(true)).join('\\n');
}}"""


@pytest.fixture(scope="module", params=IN_FULL)
def server(one_jupyter: Jupyter, request: pytest.FixtureRequest) -> Iterator[FrontEnd]:
    """One for all: each test has a terminal of its own in one sandbox."""
    yield FrontEnd(one_jupyter, request.param, f"shells-{request.param}")
    one_jupyter.clear()


@pytest.fixture(scope="module")
def page(server: FrontEnd, window: BrowserContext) -> Iterator[Page]:
    page = window.new_page()
    sandbox_of(page, server, NAME)
    yield page
    page.close()


@pytest.fixture
def section(page: Page, server: FrontEnd) -> Locator:
    """The sandbox's section in the panel, in a page without terminals."""
    page.set_viewport_size({"width": 1200, "height": 900})
    page.evaluate(f"() => {TERMINALS}.forEach(one => one.parent.close())")
    return section_of(page, server, NAME)


def sandbox_of(page: Page, server: FrontEnd, name: str) -> Locator:
    cell = "%%sandbox -m scripted/./done.yaml\nGo."
    open_notebook(page, server, server.notebook(name, "%load_ext llm_sandbox_nb", cell))
    (server.root / "done.yaml").write_text("turns:\n  - calls: [{tool: submit}]\n")
    show_panel(page)
    command(page, "notebook:run-all-cells")
    section = section_of(page, server, name)
    expect(section.locator(".lsn-badge")).to_have_text("idle")
    return section


def section_of(page: Page, server: FrontEnd, name: str) -> Locator:
    return page.get_by_role("region", name=f"Sandbox of {server.path(name)}", exact=True)


def open_terminal(page: Page, section: Locator) -> None:
    section.get_by_role("button", name="Terminal", exact=True).click()
    page.wait_for_selector(".lsn-terminal .xterm", state="visible")
    page.wait_for_function(f"() => ({SCREEN})().includes('$ ') || ({SCREEN})().includes('# ')")


def enter(page: Page, line: str) -> None:
    page.locator(".lsn-terminal .xterm-helper-textarea").last.focus()
    page.keyboard.type(line)
    page.keyboard.press("Enter")


def sees(page: Page, text: str) -> None:
    page.wait_for_function(f"text => ({SCREEN})().includes(text)", arg=text)


def test_a_person_works_in_it(page: Page, section: Locator) -> None:
    open_terminal(page, section)
    enter(page, "echo $((6 * 7)) in $PWD; tty; printf 'h\\303\\251llo\\n'")
    sees(page, "42 in /")
    sees(page, "/dev/pts/")
    sees(page, "héllo")
    rows, columns = page.evaluate(
        f"() => {{ const one = {TERMINALS}[0]._term; return [one.rows, one.cols]; }}"
    )
    enter(page, "stty size")
    sees(page, f"{rows} {columns}")
    page.set_viewport_size({"width": 900, "height": 700})
    page.wait_for_function(f"before => {TERMINALS}[0]._term.cols !== before", arg=columns)
    enter(page, "while sleep 0.2; do stty size; done")  # it may be resized more than once
    size = f"(one => `${{one.rows}} ${{one.cols}}`)({TERMINALS}[0]._term)"
    page.wait_for_function(f"() => ({SCREEN})().split('\\n').includes({size})")
    page.keyboard.press("Control+c")
    enter(page, "exit 3")
    sees(page, "[The shell has ended with exit code 3.]")


@pytest.mark.campaign
def test_closing_the_tab_ends_what_runs_in_it(page: Page, section: Locator) -> None:
    open_terminal(page, section)
    mark = own_mark()
    enter(page, f"setsid sleep {mark} & sleep {mark}")
    assert eventually(page, lambda: len(processes_with(mark)) == 2)
    page.evaluate(f"() => {{ {TERMINALS}.at(-1).parent.close(); }}")
    assert eventually(page, lambda: not processes_with(mark))


HEAR = f"""() => {{
  const term = {TERMINALS}.at(-1)._term;
  Object.assign(window, {{ titles: [], copies: [], answers: [], touched: [] }});
  term.onTitleChange(one => titles.push(one));
  term.parser.registerOscHandler(52, one => {{ copies.push(one); return false; }});
  term.onData(one => one.startsWith('\x1b') && answers.push(one));
  for (const name of ['write', 'writeText', 'read', 'readText']) {{
    navigator.clipboard[name] = () => {{ touched.push(name); return Promise.reject(new Error(name)); }};
  }}
  for (const name of ['open', 'confirm', 'prompt', 'alert']) {{
    window[name] = () => {{ touched.push(name); return null; }};
  }}
}}"""
QUESTIONS = ("6n", "5n", "?6n", "c", ">c", "?2026$p", "18t")
"""Where is the cursor, how are you, what are you, which mode is set, how large are you."""


def prints(page: Page, text: str) -> None:
    code = "".join(f"\\{byte:03o}" for byte in text.encode())
    enter(page, f"printf '{code}\\nsh''own\\n'")
    sees(page, "shown")


def answers(page: Page, pattern: str) -> None:
    """Wait until the terminal in the page has answered so: the attack works as far as the page lets it."""
    page.wait_for_function("pattern => answers.some(one => new RegExp(pattern).test(one))", arg=pattern)


def runs(page: Page, mark: str) -> None:
    enter(page, f"echo {mark[0]}''{mark[1:]}")
    sees(page, f"\n{mark}\n")


@pytest.mark.campaign
def test_what_it_prints_stays_in_it(server: FrontEnd, page: Page, section: Locator) -> None:
    """The canary is alive: xterm hears title, clipboard and questions. Only nothing comes of it."""
    open_terminal(page, section)
    title = page.title()
    page.evaluate(HEAR)
    prints(page, "\x1b]0;Your bank\a\x1b]2;<img src=x onerror=hit=1>\a<script>hit=1</script>\x1b]52;c;aGl0\a")
    prints(page, "\x1b]8;;javascript:hit=1\x1b\\click\x1b]8;;\x1b\\")
    runs(page, "after")
    assert page.evaluate("() => titles") == ["Your bank", "<img src=x onerror=hit=1>"]
    assert page.evaluate("() => copies") == ["c;aGl0"]
    assert page.evaluate("() => touched") == []
    labels = page.evaluate(f"() => {TERMINALS}.flatMap(one => [one.title.label, one.parent.title.label])")
    assert set(labels) == {f"Sandbox of {server.path(NAME)}"}
    assert page.title() == title
    expect(page.get_by_text("Your bank", exact=True)).to_have_count(0)
    assert page.evaluate("() => window.hit") is None
    expect(page.locator(".lsn-terminal script, .lsn-terminal img")).to_have_count(0)


@pytest.mark.campaign
def test_what_it_asks_types_nothing(page: Page, section: Locator) -> None:
    open_terminal(page, section)
    page.evaluate(HEAR)
    for question in QUESTIONS:
        prints(page, f"\x1b[{question}")
    prints(page, "\x1b]11;?\a\x1b]4;1;?\a\x1bP$qm\x1b\\")
    answers(page, "R$")
    answers(page, "rgb:")
    answers(page, r"\$r")
    runs(page, "after")
    assert "command not found" not in page.evaluate(SCREEN)
    # The canary: the same answer, not known as one because it comes in halves, is typed into the line.
    half = f"text => {TERMINALS}.at(-1).session.send({{ type: 'stdin', content: [text] }})"
    page.evaluate(half, "\x1b[6;")
    page.evaluate(half, "8R")
    enter(page, "echo no''thing")
    sees(page, "command not found")


@pytest.mark.campaign
def test_what_it_leaves_behind_hides_nothing(server: FrontEnd, page: Page, section: Locator) -> None:
    """Another screen, concealed text, line characters, mouse reports, white on white, half a sequence."""
    open_terminal(page, section)
    page.evaluate(HEAR)
    modes = f"(one => [one.buffer.active.type, one.modes.mouseTrackingMode].join())({TERMINALS}.at(-1)._term)"
    held = "\x1b[?1049h\x1b[8m\x1b(0\x1b[?25l\x1b[4h\x1b[?1003h\x1b[?1006h\x1b]10;#fff\a\x1b]11;#fff\a"
    code = "".join(f"\\{byte:03o}" for byte in held.encode())
    go = server.root / "go"
    enter(page, f"printf '{code}'; until [ -e {go} ]; do sleep 0.1; done; printf '\\033]0;half a title'")
    page.wait_for_function(f"() => {modes} === 'alternate,any'")
    go.touch()
    page.wait_for_function(f"() => {modes} === 'normal,none'")
    runs(page, "after")
    cell = page.evaluate(
        f"""() => {{
          const buffer = {TERMINALS}.at(-1)._term.buffer.active;
          const row = Array.from({{ length: buffer.length }}, (_, y) => buffer.getLine(y))
            .findLast(line => line.translateToString(true) === 'after');
          return row.getCell(0).isInvisible();
        }}"""
    )
    assert not cell


@pytest.mark.campaign
def test_endless_output_leaves_page_and_sandbox_usable(page: Page, section: Locator) -> None:
    open_terminal(page, section)
    enter(page, "yes 0123456789012345678901234567890123456789")
    sees(page, "0123456789\n0123")
    page.wait_for_function(f"() => {TERMINALS}.at(-1)._term.buffer.active.length >= 1000")
    section.get_by_text("Files", exact=True).click()
    expect(section.get_by_role("button", name="output/", exact=True)).to_be_visible()
    page.locator(".lsn-terminal .xterm-helper-textarea").last.focus()
    page.keyboard.press("Control+c")
    enter(page, "echo sto''pped")
    sees(page, "\nstopped")


@pytest.mark.campaign
def test_a_site_may_allow_none(window: BrowserContext, tmp_path: Path) -> None:
    page = window.new_page()
    with jupyter(tmp_path, options=("--SandboxPolicy.allow_terminal=False",)) as server:
        section = sandbox_of(page, FrontEnd(server), "none.ipynb")
        expect(section.get_by_role("button", name="More about this sandbox")).to_be_visible()
        expect(section.get_by_role("button", name="Terminal", exact=True)).to_be_hidden()
        (sandbox,) = server.sandboxes()
        assert sandbox["terminal"] is None
        assert not page.evaluate("() => jupyterapp.commands.isEnabled('llm-sandbox:terminal')")
        status, _ = server.ask(f"llm-sandbox/api/sandboxes/{sandbox['id']}/terminal")
        assert status == 403
