"""Federations: sites with their images, by name, from arrays, or from a user's own folders."""
