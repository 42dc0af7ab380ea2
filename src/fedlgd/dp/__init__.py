"""Differential privacy. A run without epsilon enters no module of this package.

    accounting  the mathematics of Gaussian noise: delta, epsilon and mu
    budget      an (epsilon, delta) as noise levels, what releases add up to, and the `guarantee` of a method
    ledger      of a site: makes every release once, and refuses what exceeds its budget
    release     noisy class sums and counts of training images, and `NoisyScores` of test images
    distil      private distillation: virtual sets from releases, and their refinement
    training    DP-SGD (`dp_sgd`) at a site, and DP-FedAvg (`dp_fedavg`) at the server

Methods call this package behind one `if`; the parts `dp-sgd` and `dp-fedavg` are in `methods/private.py`.
"""
