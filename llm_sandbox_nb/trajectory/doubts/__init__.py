"""Doubts about a run: rules that read its record and say why its result may be wrong, each with the step to look at."""
