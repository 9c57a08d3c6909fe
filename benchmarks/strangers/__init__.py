"""Training scripts as people write them, whose problems are stated apart from them."""
