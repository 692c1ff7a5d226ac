"""Client for MCP servers whose tools the model can call."""
