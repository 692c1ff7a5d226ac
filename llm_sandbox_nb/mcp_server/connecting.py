"""Commands and configurations that connect MCP clients to a sandbox. Each of them contains the secret token."""

from __future__ import annotations

import json

SERVER_NAME = "notebook-sandbox"
"""Name of the server in the configuration of a client."""


def connection_text(url: str, token: str) -> str:
    """Return the commands and configurations for all clients. `url` is the Jupyter server's URL, ending in a slash."""
    address, bearer = f"{url}llm-sandbox/mcp", f"Bearer {token}"
    headers = {"Authorization": bearer}
    cursor = {"mcpServers": {SERVER_NAME: {"url": address, "headers": headers}}}
    code = {"servers": {SERVER_NAME: {"type": "http", "url": address, "headers": headers}}}
    jupyter_ai = {
        "mcp_servers": [
            {
                "type": "http",
                "name": SERVER_NAME,
                "url": address,
                "headers": [{"name": "Authorization", "value": bearer}],
            }
        ]
    }
    return "\n".join(
        [
            "Claude Code, in a terminal:",
            f'  claude mcp add --transport http {SERVER_NAME} {address} --header "Authorization: {bearer}"',
            "Cursor, .cursor/mcp.json:",
            f"  {json.dumps(cursor)}",
            "VS Code, .vscode/mcp.json:",
            f"  {json.dumps(code)}",
            "jupyter-ai, .jupyter/mcp_settings.json in the folder of the chat or above it:",
            f"  {json.dumps(jupyter_ai)}",
        ]
    )
