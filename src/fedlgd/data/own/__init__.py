"""A user's own images, opened by `suite`.

`layouts` and `table` find out which `sites` have which images, `decode` reads them, `split` holds test images out,
and `check` finds all problems at once.
"""
