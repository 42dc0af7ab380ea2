"""Foundations: message types, tree arithmetic, random streams, SGD, losses.

`types` has what flows: sets, states, messages and random streams; `tree` calculates with them, `net` and `device`
compute, and `compile` lets a compiler do it. `losses` and `train` are a step, a round and a `score`. `meter` counts
what they cost; `guard` watches who reads private images. Without torch: `settings`, `errors` and `text` for what a
user gives and reads, `source` for the code among it, `files` for what is written and `homes` for where, and
`public` for the names that packages offer.
"""
