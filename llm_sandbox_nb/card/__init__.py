"""Display of a run: the card of the notebook, the bundle for the view, the exported page."""
