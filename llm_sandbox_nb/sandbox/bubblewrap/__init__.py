"""Isolation `bubblewrap`: namespaces made by `bwrap`, without a daemon."""
