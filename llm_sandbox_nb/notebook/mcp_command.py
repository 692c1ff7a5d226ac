"""`%sandbox mcp`: let an outside agent use the notebook's sandbox, and show the agent's calls."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_sandbox_nb.agent.control.pause_rules import pause_rules
from llm_sandbox_nb.mcp_server.connecting import connection_text
from llm_sandbox_nb.notebook.display import Output
from llm_sandbox_nb.notebook.errors import SandboxInputError, SandboxUsageError
from llm_sandbox_nb.notebook.event_loop import BackgroundLoop
from llm_sandbox_nb.notebook.magic_line import split_words, take_flag, take_value
from llm_sandbox_nb.notebook.outside_card import OutsideCard
from llm_sandbox_nb.notebook.outside_runs import OutsideRuns
from llm_sandbox_nb.notebook.sandboxes import NotebookSandboxes, OpenSandbox
from llm_sandbox_nb.notebook.saved_runs import notebook_name
from llm_sandbox_nb.notebook.server_client.keeper import ServerKeeper, server_id
from llm_sandbox_nb.notebook.settings import SandboxSettings
from llm_sandbox_nb.own_folder import expanded
from llm_sandbox_nb.runs.outside_agent import OutsideAgent, start_agent
from llm_sandbox_nb.runs.outside_calls import OutsideCalls
from llm_sandbox_nb.runs.run import Run
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.options import SandboxOptions

USAGE = "mcp [--approve auto|edits|ask] [--out FILE] [--new-token] | --stop | --revoke"
_NO_SERVER = (
    "Outside agents reach a sandbox through a Jupyter server with the extension, which this kernel does not have: name "
    "llm-sandbox-nb mcp in the agent's configuration instead. That command has a sandbox of its own."
)
_NO_PLACE = (
    "This front end would save the token in the notebook, where everyone who gets the notebook can read it: name a "
    "file for the token, as in %sandbox mcp --out ~/mcp.txt."
)
KEPT = (
    "Your token stays valid, so the agent needs no new configuration. %sandbox mcp --new-token makes another token and "
    "revokes this one."
)
OPEN = (
    "Outside agents can use this sandbox now. Each of their calls is a step of the card below. %sandbox mcp --stop "
    "ends their access."
)


@dataclass(eq=False)
class McpCommand:
    """The command `%sandbox mcp` of a notebook."""

    background: BackgroundLoop
    sandboxes: NotebookSandboxes
    options: Callable[[], SandboxOptions]
    settings: SandboxSettings
    shell: Any
    opened: OpenSandbox
    """The sandbox open to outside agents."""
    on_run: Callable[[Run, Output], None]
    """Function that is called with each run and the output that shows the run."""
    cell_task: Callable[[], Namespace]
    """Function that returns the default options of a `%%sandbox` cell."""

    def __call__(self, rest: str) -> None:
        """Execute the command; `rest` holds the words after `%sandbox mcp`.

        Raises:
            SandboxUsageError, SandboxInputError, InputError, SandboxError: if the command fails.
        """
        words = split_words(USAGE, rest, 0, 5)
        keeper = self.background.run(self.sandboxes.keeper())
        if not isinstance(keeper, ServerKeeper):
            raise SandboxInputError(_NO_SERVER)
        if words in (["--stop"], ["--revoke"]):
            self._end(keeper, revoke=words == ["--revoke"])
            return
        approve, out, new_token = _parsed(words)
        rules = pause_rules(approve=approve or "auto")
        place = RunPlace(out, self.shell)
        sandbox = self.background.run(self.sandboxes.acquire(self.options()))
        token = self.background.run(keeper.mint_token(sandbox, keep=not new_token))
        try:
            place.show(connection_text(keeper.url, token) if token else KEPT, secret=token is not None)
        except Exception:  # nobody has read this token, so the next `%sandbox mcp` must make another one
            self.background.run(keeper.revoke_token(sandbox))
            raise
        if self.opened.live(sandbox):
            if approve is not None:
                self.opened.change_approval(approve)
            print("The sandbox is open to outside agents already: its card shows their calls.")
            return
        print(OPEN)
        card = OutsideCard(self.shell, self.settings, keeper.publisher())
        starter = OutsideRuns(
            keeper, sandbox, self.settings, self.shell, self.cell_task, rules.approve, self.on_run
        )
        self.background.run(self._open(keeper, sandbox, rules, card, starter))

    async def _open(
        self, keeper: ServerKeeper, sandbox: Sandbox, rules: Any, card: OutsideCard, starter: OutsideRuns
    ) -> None:
        await self.opened.close()

        def follow_fork(run: Run) -> Any:
            publisher = keeper.publisher()
            publisher.start(run)
            return (publisher.listen,), publisher.finish

        def started(agent: OutsideAgent) -> None:
            calls = OutsideCalls(agent, follow_fork, starter.execute)

            def change_approval(approve: str) -> None:
                starter.approve = approve
                for one in calls.agents.values():
                    if not one.ended:
                        one.run.control.change(approve=approve, source="magic")

            self.opened.keep(sandbox, calls, change_approval)
            card.publisher.take_calls(calls, server_id(sandbox))
            self.on_run(agent.run, card.output)
            card.start(agent.run)

        await start_agent(
            sandbox,
            output_dir=self.settings.output_dir,
            name=notebook_name(self.shell.user_ns),
            rules=rules,
            listeners=[card.listen],
            on_start=started,
            at_end=card.finish,
        )
        await card.publisher.until_known()

    def _end(self, keeper: ServerKeeper, *, revoke: bool) -> None:
        was_open = self.background.run(self.opened.close())
        sandbox = self.background.run(self.sandboxes.current())
        if revoke and sandbox is not None:
            self.background.run(keeper.revoke_token(sandbox))
        said = (
            "Outside agents cannot use the sandbox any more."
            if was_open
            else "No outside agent could use the sandbox."
        )
        print(f"{said} The token is revoked." if revoke else said)


class RunPlace:
    """The place where a token is shown outside the saved notebook."""

    def __init__(self, file: str | None, shell: Any) -> None:
        """Choose the place. Raises SandboxInputError if this notebook has no such place and no file is named."""
        from llm_sandbox_nb.notebook.panel import page_shows_widgets

        self._file = expanded(file) if file else None
        self._widget = getattr(shell, "kernel", None) is not None
        if self._file is None and self._widget and not page_shows_widgets(shell.user_ns):
            raise SandboxInputError(_NO_PLACE)

    def show(self, text: str, *, secret: bool) -> None:
        """Show `text` once. Raises SandboxInputError when the file cannot be written."""
        if not secret:
            print(text)
        elif self._file is not None:
            try:
                with os.fdopen(
                    os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
                ) as file:
                    os.fchmod(file.fileno(), 0o600)
                    file.write(f"{text}\n")
            except OSError as error:
                raise SandboxInputError(f"{self._file} cannot be written ({error.strerror}).") from error
            print(f"{self._file} has the token and says how to connect. Only you can read this file.")
        elif self._widget:
            from IPython import display
            from ipywidgets import Layout, Textarea

            note = "How to connect, shown once: the token below is not saved in the notebook.\n\n"
            layout = Layout(width="100%", height="22em")
            show: Any = display.display
            show(Textarea(value=note + text, disabled=True, layout=layout))
        else:
            print(text)


def _parsed(words: list[str]) -> tuple[str | None, str | None, bool]:
    """Return the values of `--approve` and `--out`, and True if a new token was requested. Raises SandboxUsageError."""
    approve, out = take_value(USAGE, words, "--approve"), take_value(USAGE, words, "--out")
    new_token = take_flag(words, "--new-token")
    if words:
        raise SandboxUsageError(f"The command is %sandbox {USAGE}.")
    return approve, out, new_token
