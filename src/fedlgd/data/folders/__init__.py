"""A user's own images: detect the layout, read, decode, and check them.

`suite` has the settings and opens the federation. `layouts` finds the images, or `csv_table` in a table;
`image_source` reads one, with `eight_bit` for more than 8 bits; `decoding` makes arrays of all. `check` lists all
`problems` at once.
"""
