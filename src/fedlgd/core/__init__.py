"""Foundations: message types, tree arithmetic, random streams, SGD, losses."""
