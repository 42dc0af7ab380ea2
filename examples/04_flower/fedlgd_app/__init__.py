"""FedLGD as a Flower app."""
