"""The model: requests through LiteLLM, streams, errors, retries, and the scripted model."""
