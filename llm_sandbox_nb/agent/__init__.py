"""The loop: session, model call, limits, prompts, inputs, artifacts, recorder."""
