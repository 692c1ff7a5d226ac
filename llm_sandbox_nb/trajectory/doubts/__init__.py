"""Doubts about a run: rules that read its record and report reasons why its result may be wrong, with the step."""
