"""Options: what the command line and `%sandbox benchmark` take, where values come from, and words when one is wrong."""
