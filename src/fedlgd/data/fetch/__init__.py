"""Published data sets: downloads and readers of the original files. No pickle is read.

`download` knows the data sets and gets their files, `readers` reads them, and `prepare` does all in turn.
"""
