"""CIFAR-10-C: the suite, and the 19 corruptions to generate it from CIFAR-10.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019.
"""
