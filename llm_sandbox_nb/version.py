"""The version of this package. The build reads it from this file. npm needs a copy in `labextension/package.json`."""

__version__ = "0.1.0"
