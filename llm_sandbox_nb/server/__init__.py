"""Extension of the Jupyter server: the manager of sandboxes, and the REST and WebSocket handlers."""
