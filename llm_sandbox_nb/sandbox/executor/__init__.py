"""The program that runs inside a sandbox: runs commands and moves bytes for the host. See README.md."""
