"""Comparisons of methods and seeds under equal conditions: `fedlgd compare` and `fedlgd.compare`."""
