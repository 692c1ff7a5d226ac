"""Client of MCP servers, whose tools the model can call."""
