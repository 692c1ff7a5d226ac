"""How the host talks to the executor: frames, channel, transports."""
