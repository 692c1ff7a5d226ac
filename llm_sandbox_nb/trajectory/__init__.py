"""The record of a run: its events, its journal on disk, its steps and its state."""
