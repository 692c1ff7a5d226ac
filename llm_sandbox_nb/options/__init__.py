"""The options of the command line and of cells: the table, the parser, and where values come from."""
