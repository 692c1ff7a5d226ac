"""The program that runs inside a sandbox, where it executes commands and moves bytes for the host. See README.md."""
