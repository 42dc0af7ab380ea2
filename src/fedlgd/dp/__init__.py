"""Differential privacy: accounting, budgets, the ledger, private releases and what is guaranteed."""
