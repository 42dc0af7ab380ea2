"""Foundations: message types, tree arithmetic, random streams, SGD, losses.

`types` has what flows: sets, states and messages; `tree` calculates with them, `rng` draws, `net` and `device`
compute. `losses` and `train` are a step, a round and a `score`. `meter` counts what they cost, and
`cache` keeps expensive results. Without torch: `settings`, `errors`, `plugins` and `text` for what a user gives and
reads, and `files` for what is written.
"""
