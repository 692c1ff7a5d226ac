"""A sandbox's network with an allow-list: the policy, the proxy that enforces the policy, and the door to the proxy."""
