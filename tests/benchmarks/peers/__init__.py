"""``make bench-peers``: the workloads on what else a user could pick, in turn with TaskHub."""
