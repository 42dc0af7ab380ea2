"""Privacy attacks on runs: membership inference (audit) and gradient inversion."""
