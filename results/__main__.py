"""Generate pages, and parts of pages, from the code and from stored runs.

make results                    update all generated pages
python -m results FOLDER NAME   first store the runs of FOLDER in results/records/NAME; a third word is the commit
                                of those whose manifests do not name it
"""

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedlgd.paper.items import FOLDER
from fedlgd.paper.verdicts import MEASURED
from fedlgd.rundir.read import read_runs
from results import DOCS, NOTES, RECORDS, ROOT
from results.pages import (
    accuracy,
    bars,
    comparisons,
    deploy,
    epsilon,
    family,
    inversion,
    paper,
    parts,
    privacy,
    settings,
    shift,
    speed,
)
from results.pages.figures import themed
from results.pages.outlook import to_ship

KEPT = ("config.toml", "records.jsonl", "analysis.json", "audit.json")
PLACE = re.compile(r" (--out|-o)[ =]('[^']*'|\S+)")  # an option that says where a run is
BLOCKS: Mapping[str, Callable[[str], str]] = {
    "settings": settings.own_settings,
    "messages": settings.own_messages,
    "space": settings.search_space,
    "results": comparisons.own_results,
    "demo": comparisons.demo,
    "paper": paper.main_table,
    "compared": accuracy.compared,
    "holds": accuracy.holds,
    "tried": accuracy.tried,
    "searched": accuracy.searched,
    "per_class": accuracy.per_class,
    "worth": parts.worth,
    "bench": speed.benchmark,
    "headline": speed.headline,
    "reach": speed.reached,
    "lead": bars.lead,
    "bars": bars.bars,
    "modes": bars.modes,
    "graphs": bars.graphs,
    "peers": bars.peers,
    "scale": bars.scale,
    "hospitals": bars.hospitals,
    "deploy": deploy.measured,
    "leaves": family.leaves,
    "family": family.answer,
    "gains": family.gains,
    "membership": privacy.membership,
    "inversion": inversion.inversion,
    "epsilon": epsilon.epsilon,
    "audited": family.audited,
    "by_round": family.by_round,
}
"""What makes the text between the marks `generated: NAME ARGUMENT` and `end` of a page."""


def generated() -> dict[Path, str]:
    """The content of each generated file by path."""
    whole = {
        DOCS / "settings.md": settings.page(),
        Path(str(FOLDER / MEASURED)): to_ship(RECORDS / "paper"),
        DOCS / "results" / "shift.md": shift.page(),
    }
    whole |= {DOCS / "results" / f"{folder.name}.md": comparisons.page(folder) for folder in comparisons.stored()}
    whole |= {DOCS / "results" / "paper" / name: text for name, text in paper.pages().items()}
    drawn = accuracy.figures() | speed.figures() | bars.figures() | family.figures(*comparisons.FAMILY)
    drawn |= comparisons.figures() | shift.figures() | privacy.figures() | epsilon.figures() | inversion.figures()
    whole |= {DOCS / "images" / name: themed(text) for name, text in drawn.items()}
    pages = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(NOTES.glob("*.md")))
    own = {page: page.read_text() for page in pages if page not in whole}
    return whole | {page: filled(text) for page, text in own.items() if "<!-- generated:" in text}


def filled(text: str) -> str:
    """A page with updated text between its `generated` marks."""
    pattern = re.compile(r"<!-- generated: (\w+) (\S+) -->\n.*?<!-- end -->", re.DOTALL)
    return pattern.sub(lambda m: f"<!-- generated: {m[1]} {m[2]} -->\n{BLOCKS[m[1]](m[2])}\n<!-- end -->", text)


def store(runs: Path, name: str, commit: str = "") -> None:
    """Store the files of finished runs that the pages need, and their audits. Commands are without the folder that
    they wrote to."""
    for run in read_runs([manifest.parent for manifest in runs.rglob("manifest.json")])[0]:
        target = RECORDS / name / run.path.relative_to(runs)
        for file in (run.path / kept for kept in KEPT if run.finished):
            if file.exists():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / file.name)
        if run.finished:
            command = PLACE.sub("", run.manifest.command)
            replace(run.manifest, command=command, commit=run.manifest.commit or commit).write(target)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        store(Path(sys.argv[1]), *sys.argv[2:])
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
