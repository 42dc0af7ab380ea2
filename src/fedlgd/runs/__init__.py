"""A run is a directory: its configuration, its records, its state. Re-run the same command to resume.

`config` has the settings of a run, written as in `parse`. `run` runs it: `folder` is its directory, and the cache
of all runs; `resume` begins, resumes and extends it. `result` is what comes out, and `export` takes it elsewhere.
`compare` and `tune` (over a `space`) run many `entries`, as `jobs` in processes. `estimate` tells the time before,
`place` decides where and how passes are computed, `trackers` log the rounds. `distil` makes virtual sets alone.
`analysis` and `shift` are for the report.
"""
