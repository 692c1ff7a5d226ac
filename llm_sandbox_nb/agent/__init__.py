"""The loop of a run, with its session, model calls, limits, prompts, inputs, artifacts and recorder."""
