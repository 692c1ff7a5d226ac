"""The network of a sandbox behind a proxy: the policy, the proxy that enforces it, and the door to the proxy."""
