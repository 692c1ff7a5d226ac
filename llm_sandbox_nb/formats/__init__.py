"""Reading and writing of trajectories in the formats of other projects."""
