"""Measured results, and the one generator of pages that show them: `make results`.

`records` has stored runs, and `measured` has other stored numbers. `accuracy`, `epsilon`, `inversion`, `reach`,
`search` and `shift` are the experiments that measured some of them (`python -m results.NAME`); `agreement` compares
methods with another package. `pages` turns what is stored into pages. `notes` has pages that the documentation
names but does not contain, such as what was tried. `screenshot` takes pictures of a report.
`style` checks the English of the pages. `tour` executes the notebook of the tour and
writes its page.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTES = ROOT / "results" / "notes"
RECORDS = ROOT / "results" / "records"
MEASURED = ROOT / "results" / "measured"
