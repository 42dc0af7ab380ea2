"""A user's own images: folders, tables, hold-out and checks."""
