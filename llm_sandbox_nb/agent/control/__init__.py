"""What a person decides about a run: pause, step, breakpoints, approvals, changed settings."""
