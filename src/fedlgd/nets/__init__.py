"""The two networks of the paper, and support for user-defined networks.

`registry` builds a network by name, from a class or from a module, which `hooked` asks for its features. `builtin`
has those of the paper, `fast` their layers.
"""
