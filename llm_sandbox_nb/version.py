"""The version of this package. The build reads it here; npm needs a copy in `labextension/package.json`."""

__version__ = "0.1.0"
