"""Analysis of runs by their records: capability use, tokens, time, and behaviour of the model."""
