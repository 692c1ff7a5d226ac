"""The history of a sandbox's files: checkpoints that can be read, compared and restored.

The checkpoints are in a store outside of the sandbox. `checkpoint_store.CheckpointStore` is the contract of stores, and
`stores.STORES` lists the kinds that fulfil it. A `pack_store.PackStore` has its metadata in an SQLite database
(`index.py`), and the content of files in large files called packs (`packs.py`).
"""
