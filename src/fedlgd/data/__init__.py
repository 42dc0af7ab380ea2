"""Federations: sites with their images, by name, from arrays, or from a user's own folders.

`catalogue` lists the suites, `registry` opens one, and a `federation` comes out. `store` keeps arrays, `partition`
divides them among sites, and `preparation` makes network input. `suites` has the named federations, `folders` a
user's own images, `fetch` the downloads. `show` has what `fedlgd data show` shows.
"""
