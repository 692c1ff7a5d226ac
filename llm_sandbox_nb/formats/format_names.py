"""The names of the formats, for the command line: this module imports no other."""

WRITTEN = ("atif", "mini-swe-agent", "inspect", "llm-in-sandbox", "anthropic", "openai", "opentelemetry")
"""Formats that `convert --to` writes."""
JOURNAL = "journal"
"""Name of this package's format for `convert --to`."""
