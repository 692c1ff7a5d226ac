"""A run to look at: the card of the notebook, the bundle that the view reads, the exported page."""
