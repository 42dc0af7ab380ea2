"""Federated methods, one file each, with the site's half, the server's half and the formulas.

`protocol` is what a method is, `common` what most share, with local training and its loss, `union` uploads virtual
sets for a server that trains on them, and `registry` finds a method by name. `parts` is what can be stacked on a
method: `anchors`, `refine`, `redraw`, `regularisers`, `robust`, `fedopt`, `private`. All other modules are methods.

What the author of a method needs is imported from here, on first use: `__init__.pyi` lists it. These names are
stable; docs/write-a-method.md shows them in use.
"""

from fedlgd.core.public import on_first_use

__getattr__, __dir__ = on_first_use(__name__, __file__)
