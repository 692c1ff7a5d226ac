"""Trajectory formats of other projects, read and written."""
