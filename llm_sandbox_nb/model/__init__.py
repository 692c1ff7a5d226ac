"""Models: requests to their servers or through LiteLLM, streams, errors, retries, and the scripted model."""
