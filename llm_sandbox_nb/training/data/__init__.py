"""Training data from documents: rows of the paper's context-based tasks, built from files and questions."""
