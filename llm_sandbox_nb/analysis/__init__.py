"""Analysis of trajectories: capability use, tokens, time, behaviour. Only the record is read."""
