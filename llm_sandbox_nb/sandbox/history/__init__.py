"""The history of a sandbox's files: checkpoints that can be read, compared and restored.

`pack_store.PackStore` is the store outside of the sandbox: metadata in `index.py` (SQLite), content in `packs.py`.
"""
