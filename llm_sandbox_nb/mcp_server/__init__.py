"""Server of the Model Context Protocol, for old and new clients: messages and tools, without HTTP.

Clients up to version 2025-11-25 begin a session with a handshake; clients since 2026-07-28 ("modern") do not.
"""
