"""A user's own images, opened by `suite`.

`layouts` finds out which sites have which images, `decode` reads them and holds test images out, `classes` knows
which names look alike, and `check` finds all problems at once.
"""
