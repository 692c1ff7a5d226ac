"""The history of a sandbox's files, kept outside of it: what was when, to be read, compared and put back."""
