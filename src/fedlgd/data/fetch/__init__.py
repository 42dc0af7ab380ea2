"""Published data sets: downloads and readers of the original files. No pickle is read.

`sources` knows the data sets, `download` gets their files, `readers` reads them, and `prepare` does all in turn.
"""
