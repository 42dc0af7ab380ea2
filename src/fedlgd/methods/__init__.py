"""Federated methods, one file each, with the site's half, the server's half and the formulas.

`protocol` is what a method is, `common` what most share, `objective` the loss of a step, and `registry` finds a
method by name. `parts` is what can be stacked on a method: `anchors`, `refine`, `regularisers`, `robust`, `dpsgd`,
`dpfedavg`, with a line about each in `catalogue`. `promises` has the promises of privacy, `cost` the work of a
round. All other modules are methods.
"""
