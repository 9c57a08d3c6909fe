"""One job folded by many workers: the plan, the workers' parts, and their states, merged to the digits of one process."""
