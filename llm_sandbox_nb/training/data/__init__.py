"""Training data: rows for the paper's context-based tasks, built from documents and questions."""
