"""The 19 corruptions of CIFAR-10-C, made from photographs.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019.
"""
