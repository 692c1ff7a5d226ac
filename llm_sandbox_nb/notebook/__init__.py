"""The code that runs in the kernel: magics, the live card of a run, and the client of the Jupyter server."""
