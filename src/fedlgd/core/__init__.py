"""What everything else stands on: the types that flow, tree arithmetic, addressed randomness, SGD, losses."""
