"""Server of the Model Context Protocol (MCP): messages and tools, without HTTP.

Clients with protocol versions up to 2025-11-25 begin a session with a handshake. Clients with version 2026-07-28
("modern") have no session.
"""
