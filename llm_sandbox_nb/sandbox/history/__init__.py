"""The history of a sandbox's files, stored outside of the sandbox: checkpoints to read, compare and restore.

`store.HistoryStore` is the storage on disk: metadata in `index.py` (SQLite), content in `packs.py`.
"""
