"""The Model Context Protocol, as a server speaks it: messages, both eras, tools. Without sandbox or transport."""
