"""Isolation `docker`: a container for each sandbox."""
