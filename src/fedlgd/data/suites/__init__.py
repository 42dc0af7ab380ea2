"""The named federations: built-in digits, digits, CIFAR-10-C, retina, and splits of one domain."""
