"""LLM-in-Sandbox-RL: training of policies that learn to work with files in sandboxes."""
