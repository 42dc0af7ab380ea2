"""A run is a directory: its configuration, its records, its state. Re-run the same command to resume.

`config` has the settings of a run, written as in `parse`. `run` runs it: `folder` is its directory, which `extend`
continues; `result` is what comes out, and `export` takes it elsewhere. `compare` and `tune` (over a `space`) run
many, as `jobs` in processes. `estimate` tells the time before, `trackers` log the rounds. `distil` makes virtual
sets alone, with the `cache` that runs share. `analysis` and `shift` are for the report.
"""
