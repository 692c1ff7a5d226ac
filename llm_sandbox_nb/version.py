"""The version of this package: the only place that says it, beside pyproject.toml."""

__version__ = "0.1.0"
