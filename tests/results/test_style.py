"""The checker of the pages' English finds what it is for, at the right line, and leaves good sentences alone."""

import pytest

from results import ROOT
from results.style import check, main, pages, sentences

BAD = {
    "length": "The server " + "and the site " * 11 + "train.",
    "inversion": "What a message has and the method does not declare never leaves.",
    "riddle": "So it is known who was a member.",
    "translated": "With a lower quorum the run goes on without the site.",
    "banned": "The anchors are simply averaged.",
    "chain": "This is the mean of the classes of the sites of a run.",
    "contraction": "The server doesn't see images.",
    "term": "The server asks all sites in a selected round.",
}
GOOD = "The server averages the updates (*selected rounds* also update the anchors). See `fedlgd run`."


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_sentence_is_found_at_its_line(rule):
    found = check(f"# Title\n\nA good sentence.\n\n- One item.\n- {BAD[rule]}\n")
    assert (rule, 6) in {(each.rule, each.line) for each in found}


def test_a_good_page_has_no_findings():
    assert check(f"# Title\n\n{GOOD}\n\n| term | What it is |\n|---|---|\n| quorum | a share |\n") == []


@pytest.mark.parametrize(
    "hidden", ["    simply 1\n", "```\nsimply\n```\n", "<!-- simply -->\n", "`simply`\n", "[words](simply.md)\n"]
)
def test_code_comments_and_addresses_are_not_english(hidden):
    assert check(f"# Title\n\nText.\n\n{hidden}\nText.\n") == []


def test_a_long_list_is_no_long_sentence():
    assert check("Reduced: " + ", ".join(["three more words"] * 12) + ".\n") == []
    assert check("Reduced: three words, " + "and the site " * 11 + "train.\n")


def test_a_glossary_link_explains_all_terms():
    assert check("The quorum is 1. Terms are in the [glossary](../glossary.md).\n") == []


def test_abbreviations_and_cells_end_no_sentence():
    assert [
        said for _, said in sentences("See Eq. 1 of Zhu et al. 2019 first. Then run.\n\n| One cell | two |\n")
    ] == [
        "See Eq. 1 of Zhu et al. 2019 first.".replace("Eq.", "Eq․").replace("al.", "al․"),
        "Then run.",
        "One cell",
        "two",
    ]


def test_the_command_prints_findings_and_fails(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(BAD["banned"])
    assert main([str(page)]) == 1
    assert "page.md:1: banned" in capsys.readouterr().out


def test_readme_and_guides_are_checked():
    names = {str(page.relative_to(ROOT)) for page in pages()}
    assert {"README.md", "docs/index.md", "docs/results/privacy.md"} <= names


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_pages_are_in_plain_english(page):
    """`make docs` checks the same."""
    assert check(page.read_text(), str(page.relative_to(ROOT))) == []
