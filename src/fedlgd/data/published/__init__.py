"""Suites of published data sets."""
