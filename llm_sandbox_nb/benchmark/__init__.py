"""Benchmarks, such as the paper's measurements: tasks, scorers, the judge, and the runner."""
