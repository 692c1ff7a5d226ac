"""The history of a sandbox's files, kept outside of it: checkpoints to read, compare and restore.

`store.HistoryStore` keeps the content of files on disk.
"""
