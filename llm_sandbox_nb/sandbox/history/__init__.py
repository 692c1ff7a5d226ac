"""The history of a sandbox's files: checkpoints that can be read, compared and restored.

`checkpoint_store.CheckpointStore` is the contract of a store outside of the sandbox. `pack_store.PackStore` fulfils it:
metadata in `index.py` (SQLite), content in `packs.py`.
"""
