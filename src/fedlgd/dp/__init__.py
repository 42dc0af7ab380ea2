"""Differential privacy. A run without epsilon enters no module of this package.

`accounting` is the mathematics of Gaussian noise; `budget` divides an (epsilon, delta) into noise levels and says
what a method promises. The `ledger` of a site makes every `release` once. `distil` makes private virtual sets, and
`training` has DP-SGD and DP-FedAvg. Methods call this package behind one `if`; the parts `dp-sgd` and `dp-fedavg`
are in `methods/private.py`.
"""
