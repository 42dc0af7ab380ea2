"""The tables and figures of the paper, of which nothing but `fedlgd paper` knows.

`items` reads what each of them is (`content/*.toml`), makes its runs and finds stored ones; `verdicts` decides the
claims and shows our numbers beside the printed ones; `plan` says what the undecided claims wait for.
"""
