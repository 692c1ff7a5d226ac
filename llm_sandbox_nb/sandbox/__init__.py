"""The computer: one contract, three isolations, one executor inside, the image."""
