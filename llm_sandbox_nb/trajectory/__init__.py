"""The record of a run: events, the fold into steps, the journal on disk, import and export."""
