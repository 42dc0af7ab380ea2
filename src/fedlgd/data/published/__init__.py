"""Suites of published data sets: `digits`, `retina`, `cifar10c` (`corruptions`, `blur`) and `split`."""
