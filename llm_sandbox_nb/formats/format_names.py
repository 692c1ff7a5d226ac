"""The names of the formats, for the command line: importing this module imports no other."""

WRITTEN = ("atif", "mini-swe-agent", "inspect", "llm-in-sandbox", "anthropic", "openai", "opentelemetry")
"""Formats that `convert --to` writes."""
JOURNAL = "journal"
"""The format of this package, as `convert --to` takes it."""
