"""Reports of runs: `page.write_report` writes one HTML file, and `watch` serves it live.

`groups` joins the seeds of a method. `tables`, `accuracy`, `classes`, `cost` and `summary` give the results in
numbers and words, `decision` whether a site should join. `figures` draws them with `plots`; `grids` has the images.
`claims` is what may be said about a method, `privacy` what left the sites and what is promised, `attacks` what
attacks found. `page` puts everything together, section by section.
"""
