"""What an attacker can learn from a federation: membership audits and gradient inversion of stored runs."""
