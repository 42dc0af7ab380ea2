"""The two networks of the paper, and support for user-defined networks.

`registry` builds a network by name, from a class or from a module, and finds its features. `builtin` has those of
the paper, with their layers.

What the author of a network needs is imported from here, on first use: `__init__.pyi` lists it.
"""

from fedlgd.core.public import on_first_use

__getattr__, __dir__ = on_first_use(__name__, __file__)
