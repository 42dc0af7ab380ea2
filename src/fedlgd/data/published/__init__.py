"""Suites of published data sets: `domains` (digits, retina), `cifar10c` with `corruptions` and `blur`, `split`."""
