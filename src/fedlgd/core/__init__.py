"""Foundations: message types, tree arithmetic, random streams, SGD, losses.

`types` has what flows: sets, states and messages; `tree` calculates with them, `rng` draws, `net` and `device`
compute. `losses`, `train` and `evaluate` are a step, a round and a score. `meter` counts what they cost. Without
torch: `settings`, `errors`, `suggest` and `words` for what a user gives and reads; `files`, `records`, `audits` and
`numbered` for what a run folder holds; `sweep` for the names of swept settings; `gauss` for differential privacy.
`html` is for notebooks.
"""
