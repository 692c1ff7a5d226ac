"""Stands before a package that takes seconds to import and that nobody here needs: jsonschema does without it."""

raise ImportError("left out, so that the processes of Ray start quickly")
