"""The options of the command line and of cells: table, parser, and sources of values."""
