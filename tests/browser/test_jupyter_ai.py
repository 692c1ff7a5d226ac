"""jupyter-ai 3 in one environment with our extension: its agents work in the sandbox of a notebook."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_scripts import script_text, turn
from jupyter_process import free_port
from outside_agents import OpenNotebook
from own_environments import environment
from playwright.sync_api import Page, expect
from scripted_server import ScriptedServer
from servers import ROOT, FrontEnd, Jupyter, command, jupyter, open_notebook

from llm_sandbox_nb.mcp_server.tools import RUN_TOOLS, TOOLS
from llm_sandbox_nb.runs.run import Run

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]  # the first installs 220 packages
MODEL = "openai/scripted"


def calls(tool: str, **arguments: Any) -> dict[str, Any]:
    return turn({"tool": tool, "arguments": arguments})


SCRIPT = script_text(
    calls("run_command", command="echo from-jupyternaut > note.txt; cat note.txt"),
    calls("run_command", command="rm note.txt"),
    calls("show_changes", **{"from": "1"}),
    calls("rewind", to="1"),
    calls("read_file", path="note.txt"),
    {"text": "The note is back."},
)
PERSONA = """
import sys
from jupyter_ai_acp_client.base_acp_persona import BaseAcpPersona
from jupyter_ai_persona_manager import PersonaDefaults

class OneCommandPersona(BaseAcpPersona):
    def __init__(self, *args, **options):
        super().__init__(*args, executable=[sys.executable, {agent!r}], **options)

    @property
    def defaults(self):
        return PersonaDefaults(name="Agent", description="", avatar_path="", system_prompt="")
"""


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    """The model of Jupyternaut."""
    with ScriptedServer(SCRIPT, strict=False) as server:  # LiteLLM adds fields of providers
        yield server


@pytest.fixture
def jupyter_ai(model: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jupyter]:
    """JupyterLab with jupyter-ai and our extension; the packages fit the ranges of both."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    programs = environment("jupyter-ai", *ours, lock=Path(__file__).with_name("jupyter_ai.txt"))
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download at the start
    parameters = {MODEL: {"api_base": model.url, "api_key": "key"}}
    options = (
        f"--JupyternautExtension.initial_language_model={MODEL}",
        f"--JupyternautExtension.model_parameters={parameters}",
        f"--MCPExtensionApp.mcp_port={free_port()}",
    )
    with jupyter(tmp_path, python=programs / "python", options=options) as running:
        yield running


def connect(jupyter_ai: Jupyter, shown: str) -> None:
    """Do as the lines of `%sandbox mcp` say."""
    lines = shown.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("jupyter-ai, ")]
    file = jupyter_ai.root / lines[at].split()[1]
    file.parent.mkdir()
    file.write_text(lines[at + 1].strip())


def check(model: ScriptedServer, run: Run) -> None:
    """The model was offered our tools, read their results, and each call that changes something is a step."""
    offered = {tool["function"]["name"] for tool in model.requests[0].body["tools"]}
    assert offered >= TOOLS.keys() - RUN_TOOLS
    made, removed, changes, rewound, read = (
        json.dumps(message["content"]) for message in model.requests[-1].messages if message["role"] == "tool"
    )
    assert "from-jupyternaut" in made
    assert "note.txt" in removed
    assert "-from-jupyternaut" in changes
    assert "undo" in rewound
    assert "from-jupyternaut" in read
    commands = [call.arguments.get("command") for step in run.steps for call in step.calls]
    assert commands[0] == "echo from-jupyternaut > note.txt; cat note.txt"


def test_jupyternaut_is_asked_over_http(jupyter_ai: Jupyter, model: ScriptedServer) -> None:
    with jupyter_ai.warm_kernel() as kernel:
        notebook = OpenNotebook(jupyter_ai, kernel)
        connect(jupyter_ai, notebook.file.read_text())
        reply = jupyter_ai.post("api/ai/message/Jupyternaut", {"message": "Bring the note back."})
        assert "The note is back." in reply["response"], jupyter_ai.log
        check(model, notebook.run())
        notebook.execute("%sandbox mcp --revoke")


def test_an_agent_of_acp_gets_the_server(jupyter_ai: Jupyter) -> None:
    """jupyter-ai connects Claude Code, Codex and others by the Agent Client Protocol."""
    with jupyter_ai.warm_kernel() as kernel:
        notebook = OpenNotebook(jupyter_ai, kernel)
        connect(jupyter_ai, notebook.file.read_text())
        persona = jupyter_ai.root / ".jupyter" / "personas" / "one_persona.py"
        persona.parent.mkdir()
        persona.write_text(PERSONA.format(agent=str(ROOT / "tests" / "acp_agent.py")))
        reply = jupyter_ai.post("api/ai/message/Agent", {"message": "Say where you are from."})
        assert "from-acp" in reply["response"], jupyter_ai.log
        (step,) = [step for step in notebook.run().steps if step.calls]
        assert step.calls[0].arguments["command"] == "echo from-acp"
        notebook.execute("%sandbox mcp --revoke")


def test_jupyternaut_is_asked_in_its_chat(jupyter_ai: Jupyter, model: ScriptedServer, page: Page) -> None:
    server = FrontEnd(jupyter_ai)
    name = server.notebook("outside.ipynb", "%load_ext llm_sandbox_nb", "%sandbox mcp")
    page.set_viewport_size({"width": 1600, "height": 1200})
    open_notebook(page, server, name)
    command(page, "notebook:run-all-cells")
    field = page.locator("textarea[disabled]").first
    expect(field).to_be_visible()
    connect(jupyter_ai, field.input_value())

    (server.root / "talk.chat").write_text("{}")
    page.evaluate(
        "() => jupyterapp.commands.execute('jupyterlab-chat:open', {filepath: 'talk.chat'}).then(() => null)"
    )
    page.locator(".jp-jai-personaControls-persona-btn").click()
    page.get_by_role("menuitem", name="Jupyternaut").click()
    chat = page.locator(".jp-chat-input-container")
    chat.get_by_role("combobox").press_sequentially("Bring the note back.")
    chat.locator(".jp-chat-send-button").click()
    expect(page.locator(".jp-chat-rendered-message", has_text="The note is back.")).to_be_visible()
    (journal,) = server.root.rglob("journal.jsonl")
    check(model, Run.load(journal.parent))
    page.get_by_role("tab", name=name).click()
    step = page.locator(".lsn-view .lsn-step[data-step='1']").first
    expect(step).to_contain_text("from-jupyternaut")
    expect(page.get_by_text("Waiting for a call")).to_be_visible()
