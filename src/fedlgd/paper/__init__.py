"""The tables and figures of the paper, of which nothing but `fedlgd paper` knows.

`items` reads what each of them is (`content/*.toml`), `runs` makes its runs and finds stored ones, `verdicts`
decides the claims, and `page` shows our numbers beside the printed ones.
"""
