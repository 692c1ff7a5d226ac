"""Isolation `bubblewrap`: `bwrap` makes Linux namespaces, without a daemon."""
