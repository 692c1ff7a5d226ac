"""The server side of the Model Context Protocol, in both eras: messages and tools, without transport."""
