"""A sandbox's network behind a proxy: the policy, the proxy that enforces the policy, and the door to the proxy."""
