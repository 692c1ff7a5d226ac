"""The version of this package. The build reads it here; `labextension/package.json` repeats it, as npm needs it."""

__version__ = "0.1.0"
