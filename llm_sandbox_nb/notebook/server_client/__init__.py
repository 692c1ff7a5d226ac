"""The notebook's sandbox and runs at the Jupyter server, over HTTP and WebSocket."""
