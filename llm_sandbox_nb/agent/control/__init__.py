"""Decisions of a person about a run: pause, step, breakpoints, approvals, changed settings."""
