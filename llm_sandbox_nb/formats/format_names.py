"""Names of the formats. This module has no imports, so that the command line starts fast."""

WRITTEN = ("atif", "mini-swe-agent", "inspect", "llm-in-sandbox", "anthropic", "openai", "opentelemetry")
"""Names of the formats that `convert --to` writes."""
JOURNAL = "journal"
"""Name of this package's format for `convert --to`."""
