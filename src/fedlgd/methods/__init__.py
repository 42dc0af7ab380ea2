"""Federated methods, one file each, with the site's half, the server's half and the formulas.

`protocol` is what a method is, `common` what most share, `objective` the loss of a step, and `registry` finds a
method by name. `parts` is what can be stacked on a method: `anchors`, `refine`, `regularisers`, `robust`,
`private`. All other modules are methods.
"""
