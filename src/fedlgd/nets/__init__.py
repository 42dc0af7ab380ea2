"""The two networks of the paper, and support for user-defined networks."""
