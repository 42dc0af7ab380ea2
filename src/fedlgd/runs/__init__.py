"""A run is a directory: its configuration, its records, its state. Re-run the same command to resume.

`config` has the settings of a run, written as in `literals` and listed by `described`. `runner` runs it: `manifest`
and `store` are its folder, `result` is what comes out, `open` reads it later, and `export` takes it elsewhere.
`comparing` and `tuning` run many. `estimate` tells the time before, `track` logs the rounds. `distilled` makes
virtual sets alone, with the `cache` that runs share. `analysis`, `shift` and `pictures` are for the report.
"""
