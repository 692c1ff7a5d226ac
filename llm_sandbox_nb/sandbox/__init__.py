"""The sandbox: its contract, three isolations, the executor (the program inside each sandbox), and the image."""
