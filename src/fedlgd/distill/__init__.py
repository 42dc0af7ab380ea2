"""Distillation of virtual images: initialisation, distribution matching, and gradient matching.

`settings` says how. A virtual set begins with `start` (for VHL: `generate`), is moved by `distribution` with
`augment` and `descent`, and is kept by `cache` and in the files of `sets`. `gradient` moves the anchors. With
differential privacy, `private` does what `distribution` does: from a `budget`, by a `release`, which the `ledger`
of the site makes once.
"""
