"""LLM-in-Sandbox-RL: policies that learn from files, in sandboxes."""
