"""What trajectories tell: capability use, tokens, time, behaviour. Knows the record and nothing else."""
