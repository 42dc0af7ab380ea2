"""A module that fails when it is imported."""

raise RuntimeError("this module is broken")
