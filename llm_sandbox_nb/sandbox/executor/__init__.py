"""The program that runs inside a sandbox: it runs commands and moves bytes for the host. README.md explains it."""
