"""Federated methods, one file each, with the site's half, the server's half and the formulas."""
