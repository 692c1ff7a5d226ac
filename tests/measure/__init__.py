"""`make measure`: a model with and without a sandbox, and in other packages, on the same rows with the same limits."""
