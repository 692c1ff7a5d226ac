"""Network of a sandbox as an allow-list: the policy, the proxy that enforces it, and the door to the proxy."""
