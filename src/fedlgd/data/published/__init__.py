"""Suites of published data: `domains` (digits, retina), `partition` (split, cifar10c), `corruptions`, `blur`."""
