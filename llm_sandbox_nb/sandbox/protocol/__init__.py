"""Communication between the host and the executor: frames, channel, transports."""
