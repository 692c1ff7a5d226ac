"""Isolation `docker`, which runs each sandbox in a container."""
