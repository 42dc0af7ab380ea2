"""Pages, and the generated parts of pages: text from the code, from stored runs and from other stored numbers.

`settings` reads the code, and `comparisons` the runs of any comparison. The others have one subject each:
`accuracy`, `deploy`, `paper`, `privacy` with its parts `inversion` and `epsilon`, `shift` and `speed`.
"""
