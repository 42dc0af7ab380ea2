"""Federated methods: one file each, two halves and the formulas side by side."""
