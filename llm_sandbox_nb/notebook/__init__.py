"""The kernel side: magics, the run card, the client of the server."""
