"""Federations: sites with their images, by name, from arrays, or from a user's own folders.

`suites` has the table of the suites and opens one; a `federation` comes out. `images` and `dicom` read one file,
`prepare` makes network input, `arrays` keeps arrays in the data home. `builtin` and `published` have the named
federations, `own` a user's own images, `example` rendered ones to begin with, `fetch` the downloads.
`describe` has what `fedlgd data show` shows.

What the author of a suite needs is imported from here, on first use: `__init__.pyi` lists it.
"""

from fedlgd.core.public import on_first_use

__getattr__, __dir__ = on_first_use(__name__, __file__)
