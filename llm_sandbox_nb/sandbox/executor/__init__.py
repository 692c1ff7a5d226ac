"""The program inside a sandbox, which executes commands and moves bytes for the host. See README.md."""
