"""The Model Context Protocol as a server speaks both of its eras: messages and tools, without sandbox or transport."""
