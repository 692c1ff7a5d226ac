"""Language models: requests to model servers, streamed replies, errors, retries, and a model that plays a script."""
