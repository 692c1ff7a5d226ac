"""The paper's measurements: tasks, scorers, the judge, and the runner."""
