"""Reports of runs: `page.write_report` writes one HTML file, and `watch` serves it live.

`groups` joins the seeds of a method. `tables`, `cost` and `summary` give the results in numbers and words, written
by `formats`. `figures` draws them with `plots`; `grids` has the images. `privacy` and
`inversion` say what left the sites and what attacks found. `page` puts everything together, section by section.
"""
