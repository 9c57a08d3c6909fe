"""Times of GPU traces by rank: kernels, copies, collectives, and what the host did in the gaps."""
