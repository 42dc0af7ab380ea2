"""Check the English of the pages: `python -m results.style [PAGE ...]`, also a part of `make docs`.

`style.toml` has the rules: the length of a sentence, patterns that none may contain, and terms to explain.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from results import DOCS, ROOT

RULES = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())
GLOSSARY = "glossary.md"
UNCHECKED = ("settings.md", "api.md")  # generated from the code, and names only
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|etc|vs|Eq|Fig|cf|No|approx)\.")
SENTENCE_END = re.compile(r"[.!?][)\"'*]*(?=\s+[A-Z*`\[(0-9“\"_†‡∗▲])")
LONG_LIST = 4  # commas
WORD = re.compile(r"[^\W_]")
EMPHASIS = re.compile(r"\*{1,2}[^*\n]+\*{1,2}|\[[^\]]+\]\(|^#.*$|^\| [^|]+\|", re.M)


class Finding(NamedTuple):
    page: str
    line: int
    rule: str
    say: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.rule}: {self.say}: {self.text}"


def pages() -> Sequence[Path]:
    """The pages that are checked by default: all but references that are made from the code."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *(page for page in sorted(DOCS.rglob("*.md")) if page.name not in UNCHECKED)]


def check(text: str, page: str = "page") -> list[Finding]:
    """What is wrong with a page of Markdown."""
    found = [finding for line, sentence in sentences(text) for finding in judged(page, line, sentence)]
    return [*found, *unexplained(text, page)]


def judged(page: str, line: int, sentence: str) -> Iterator[Finding]:
    """What is wrong with a sentence."""
    count = max(len([word for word in part.split() if WORD.search(word)]) for part in parts(sentence))
    if count > RULES["max_words"]:
        yield Finding(page, line, "length", f"{count} words, at most {RULES['max_words']}", sentence)
    for rule, each in RULES["patterns"].items():
        for pattern in each["find"]:
            if found := re.search(pattern, sentence, re.I):
                yield Finding(page, line, rule, f"{each['say']} ({found[0]!r})", sentence)


def parts(sentence: str) -> list[str]:
    """The parts of a sentence between semicolons; after a colon, the items of a long list, too."""
    lead, colon, items = sentence.partition(":")
    if colon and items.count(",") >= LONG_LIST:
        return [lead, *re.split("[;,]", items)]
    return sentence.split(";")


def unexplained(text: str, page: str) -> Iterator[Finding]:
    """Terms of the project that the page does not explain where they first stand."""
    if GLOSSARY in text or page.endswith(GLOSSARY):
        return
    plain = re.sub(r"`[^`\n]*`", lambda match: "`" * len(match[0]), without_code(text))
    emphasised = [range(*match.span()) for match in EMPHASIS.finditer(plain)]
    for term in RULES["terms"]["words"]:
        first = re.search(rf"\b{term}", plain, re.I)
        if first and not any(first.start() in span for span in emphasised):
            line = plain[: first.start()].count("\n") + 1
            say = f"explain the term where it first stands, or link to {GLOSSARY}"
            yield Finding(page, line, "term", say, term)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page with their line numbers."""
    for start, paragraph in paragraphs(without_code(text)):
        plain = ABBREVIATIONS.sub(lambda match: match[0].replace(".", "․"), paragraph)
        begin = 0
        for end in [*(match.end() for match in SENTENCE_END.finditer(plain)), len(plain)]:
            if said := " ".join(prose(plain[begin:end]).split()):
                lines = plain[:begin].count("\n") + (plain[begin : begin + 1] == "\n")
                yield start + lines, said
            begin = end


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Blocks of text: paragraphs, list items, headings, and cells of tables."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if block and (not line.strip() or re.match(r"\s*([-*+]|\d+\.) |#|\||!!!", line)):
            yield number - len(block), "\n".join(block)
            block = []
        if line.startswith("|"):
            yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip():
            block.append(re.sub(r"^\s*(([-*+]|\d+\.) |#+ |!!! \w+|> )?", "", line))


def without_code(text: str) -> str:
    """A page with empty lines in place of code, comments and formulas, so that line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"<!--.*?-->|^```.*?^```|^\$\$.*?^\$\$", blank, text, flags=re.S | re.M)
    return re.sub(r"(?:(?<=\n)|\A)(?<=\n\n)(?: {4,}.*\n|\n(?= {4,}))+", blank, text)


def prose(text: str) -> str:
    """Text without its markup; code is one word."""
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(r"<[^>]+>|\{[^}]*\}|[*$]", "", text)


def main(names: Sequence[str]) -> int:
    """Print what is wrong with the named pages, or with all; 1 if there is something."""
    chosen = [Path(name).resolve() for name in names] or pages()
    found = [each for page in chosen for each in check(page.read_text(), os.path.relpath(page, ROOT))]
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
