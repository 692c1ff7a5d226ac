"""The Jupyter server side: the manager of sandboxes, its REST and WebSocket handlers."""
