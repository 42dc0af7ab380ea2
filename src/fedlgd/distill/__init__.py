"""Distillation of virtual images: initialisation, distribution matching, and gradient matching.

`settings` says how. A virtual set begins with `init`, is moved by `distribution` with `augment`, and can be kept in
`files`. `gradient` moves the anchors. With differential privacy, `fedlgd.dp` does what `distribution` does.
"""
