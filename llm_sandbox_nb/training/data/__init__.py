"""Training data from documents: rows for the paper's context-based tasks, which are built from files and questions."""
