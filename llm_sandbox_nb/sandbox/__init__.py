"""The sandbox: its contract, three isolations, the executor inside, and the image."""
