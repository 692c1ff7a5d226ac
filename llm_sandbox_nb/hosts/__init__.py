"""Adapters for the programs of other projects."""
