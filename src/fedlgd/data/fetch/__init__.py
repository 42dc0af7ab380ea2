"""Published data sets: downloads and readers of the original files. No pickle is read.

`originals` knows the data sets, `download` gets their files, and `prepare` does everything in turn. `digits`,
`pictures` and `cifar` read what was downloaded.
"""
