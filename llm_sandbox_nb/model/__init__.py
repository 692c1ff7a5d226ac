"""The model: requests to its server or through LiteLLM, streams, errors, retries, and the scripted model."""
