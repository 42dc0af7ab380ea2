"""Published data sets: downloads and readers of the original files. No pickle is read."""
