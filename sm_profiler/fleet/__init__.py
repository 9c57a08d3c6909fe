"""Many jobs at once: a row for each, what they cost, what of that was lost, and what they have in common."""
