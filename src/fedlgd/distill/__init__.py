"""Distillation of virtual images: initialisation, distribution matching, and gradient matching."""
