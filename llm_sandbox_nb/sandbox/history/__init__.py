"""The history of a sandbox's files: checkpoints that can be read, compared and restored.

`store.HistoryStore` stores the history outside of the sandbox: metadata in `index.py` (SQLite), content in `packs.py`.
"""
