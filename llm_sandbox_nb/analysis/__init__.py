"""Analysis of trajectories: capability use, tokens, time, behaviour. Knows only the record."""
