"""Doubts about a run: rules that read its record and report why its result may be wrong, with the step to look at."""
