"""The loop: model, tools, prompts, limits."""
