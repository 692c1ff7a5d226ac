"""The names of the formats, in a module without imports so that the command line starts fast."""

WRITTEN = ("atif", "mini-swe-agent", "inspect", "llm-in-sandbox", "anthropic", "openai", "opentelemetry")
"""Formats that `convert --to` writes."""
JOURNAL = "journal"
"""Name of this package's format for `convert --to`."""
