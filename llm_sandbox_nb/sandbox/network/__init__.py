"""The network as an allow-list: the policy, the proxy that holds it, and the door that leads to the proxy."""
