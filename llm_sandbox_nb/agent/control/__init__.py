"""A person's decisions about a run, such as pauses, steps, breakpoints, approvals and changed settings."""
