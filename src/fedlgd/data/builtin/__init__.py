"""Digits that come with the package and are rendered here."""
