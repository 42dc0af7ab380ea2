"""`fedlgd tune`: search spaces, successive halving, and what a search found."""
