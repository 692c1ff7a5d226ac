"""Stands before a package that builds a grammar for seconds in every process that imports jsonschema.

Without it jsonschema does not check IRIs; nothing here has any.
"""

raise ImportError("left out, so that tests, Jupyter servers and the processes of Ray start quickly")
