"""Every problem of a folder at once, each with its site, its file and a way out."""

import os
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from fedlgd.core import files
from fedlgd.core.errors import DataError, message
from fedlgd.core.meter import listening
from fedlgd.data.own.check import check_data
from fedlgd.data.own.suite import Folders
from tests.data.pictures import divided, noise, save, tree
from tests.errors import refuses


@pytest.fixture
def root(tmp_path):
    return tmp_path / "sites"


def found(root, least=1, **how):
    checked = check_data(root, least, how=Folders(**how))
    for problem in checked.problems:
        assert problem.problem
        assert problem.way_out
        assert all(text.isprintable() for text in (problem.site, problem.file, problem.problem, problem.way_out))
    return [(p.severity, p.site, p.file, p.code) for p in checked.problems]


def one(root, severity, site, file, code, least=1, **values):
    """The only problem there is, and the values of its message."""
    (got,) = check_data(root, least).problems
    assert found(root, least) == [(severity, site, file, code)]
    if values:
        assert f"{got.problem}; {got.way_out}" == message(code, **values)


def test_a_clean_tree_has_none(root):
    checked = check_data(tree(root), least=1)
    assert (checked.sites, checked.images, checked.problems) == (2, 24, ())


def test_a_path_that_does_not_exist_is_refused(root):
    with refuses("no-such-path"):
        check_data(root)


def test_a_layout_that_does_not_fit_is_a_problem(root):
    save(root / "no" / "1.png", noise(1))
    ((severity, _, _, problem),) = found(root)
    assert severity == "error"
    assert problem == "no-class-folders"


def test_every_unreadable_file_is_listed_not_only_the_first(root, tmp_path):
    tree(root)
    (root / "a" / "no" / "text.png").write_text("hello")
    (root / "b" / "yes" / "empty.jpg").touch()
    (root / "b" / "yes" / "cut.png").write_bytes((root / "b" / "yes" / "1.png").read_bytes()[:60])
    os.mkfifo(root / "b" / "yes" / "pipe.png")
    save(tmp_path / "secret.png", noise(99))
    (root / "b" / "yes" / "link.png").symlink_to(tmp_path / "secret.png")
    got = found(root)
    assert [(severity, file) for severity, _, file, _ in got] == [
        ("error", f)
        for f in ("a/no/text.png", "b/yes/cut.png", "b/yes/empty.jpg", "b/yes/link.png", "b/yes/pipe.png")
    ]


def test_unreadable_files_that_a_run_leaves_out_are_warnings(root):
    tree(root)
    (root / "a" / "no" / "text.png").write_text("hello")
    assert found(root, skip_bad=True) == [("warning", "a", "a/no/text.png", "unknown-image-format")]


def test_a_file_that_is_odd_is_a_warning(root):
    tree(root)
    noise(99).save(root / "a" / "no" / "x.jpg", "PNG")
    one(root, "warning", "a", "a/no/x.jpg", "file-of-other-format", found="PNG", suffix=".jpg")


def test_an_image_of_one_colour(root):
    save(tree(root) / "a" / "no" / "x.png", Image.new("RGB", (8, 8), (9, 9, 9)))
    one(root, "warning", "a", "a/no/x.png", "single-colour")


@pytest.mark.parametrize(
    ("stray", "site", "code"),
    [
        ("notes.txt", "", "not-an-image"),
        ("a/x.png", "a", "image-outside-class"),
    ],
)
def test_what_is_skipped_is_said(root, stray, site, code):
    (tree(root) / stray).write_text("stray")
    one(root, "warning", site, stray, code)


def test_folders_inside_class_folders_and_empty_ones(root):
    tree(root)
    save(root / "a" / "no" / "patient 1" / "x.png", noise(99))
    (root / "b" / "maybe").mkdir()
    (root / "c").mkdir()
    assert [(site, file) for _, site, file, _ in found(root)] == [
        ("a", "a/no/patient 1"),
        ("b", "b/maybe"),
        ("c", "c"),
    ]


class TestDuplicates:
    def test_a_test_image_that_is_also_trained_on_is_an_error(self, root):
        divided(root)
        save(root / "a" / "Testing" / "no" / "copy.png", Image.open(root / "a" / "Training" / "no" / "1.png"))
        one(root, "error", "a", "a/Testing/no/copy.png", "test-image-in-training", other="a/Training/no/1.png")

    def test_also_at_another_site(self, root):
        divided(root)
        save(root / "b" / "Testing" / "no" / "copy.png", Image.open(root / "a" / "Training" / "no" / "1.png"))
        one(
            root,
            "error",
            "b",
            "b/Testing/no/copy.png",
            "test-image-in-training",
            other="a/Training/no/1.png at site 'a'",
        )

    def test_the_same_image_to_train_on_at_two_sites_is_a_warning(self, root):
        divided(root)
        save(root / "b" / "Training" / "no" / "copy.png", Image.open(root / "a" / "Training" / "no" / "1.png"))
        one(
            root,
            "warning",
            "b",
            "b/Training/no/copy.png",
            "same-image-at-two-sites",
            other="a/Training/no/1.png at site 'a'",
        )

    def test_twice_in_one_part_is_a_warning(self, root):
        divided(root)
        save(root / "b" / "Training" / "no" / "copy.png", Image.open(root / "b" / "Training" / "no" / "1.png"))
        one(root, "warning", "b", "b/Training/no/copy.png", "same-image", other="b/Training/no/1.png")

    def test_under_two_classes_is_an_error(self, root):
        divided(root)
        save(root / "b" / "Training" / "yes" / "copy.png", Image.open(root / "b" / "Training" / "no" / "1.png"))
        one(
            root,
            "error",
            "b",
            "b/Training/yes/copy.png",
            "same-image-other-class",
            other="b/Training/no/1.png",
            label="no",
        )

    def test_copies_that_are_divided_here_stay_on_one_side(self, root):
        tree(root, sites=["a"])
        save(root / "a" / "no" / "copy.png", Image.open(root / "a" / "no" / "1.png"))
        one(root, "warning", "a", "a/no/copy.png", "same-image")


class TestClasses:
    def test_a_class_that_a_site_does_not_have(self, root):
        tree(root, sites=["a"])
        tree(root, sites=["b"], classes={"no": 6})
        assert ("error", "b", "", "class-too-small-at-site") in found(root)

    def test_a_tiny_class(self, root):
        tree(root, sites=["a"], classes={"no": 15, "yes": 6})
        one(root, "warning", "a", "", "class-with-few-images", least=10, count=5, label="yes")

    def test_a_class_without_a_test_image(self, root):
        divided(root)
        for file in (root / "a" / "Testing" / "yes").iterdir():
            file.unlink()
        assert ("warning", "a", "", "class-without-test") in found(root)

    def test_a_class_that_outweighs_another(self, root):
        tree(root, sites=["a"], classes={"no": 30, "yes": 3})
        one(root, "warning", "a", "", "classes-uneven", largest=24, smallest=2)

    def test_a_single_class(self, root):
        one(tree(root, classes={"no": 6}), "error", "", "", "one-class", label="no")

    @pytest.mark.parametrize("other", ["glaucoma", "Glaucoma ", "GLAUCOMA"])
    def test_names_that_differ_only_in_case_or_blanks(self, root, other):
        tree(root, sites=["a"], classes={"Glaucoma": 3})
        tree(root, sites=["b"], classes={other: 3})
        assert ("error", "", "", "class-names-alike") in found(root)

    def test_a_misspelt_class_is_one_message_that_says_what_it_looks_like(self, root):
        tree(root, sites=["a", "b", "c"], classes={"glaucoma": 6, "normal": 6})
        (root / "c" / "glaucoma").rename(root / "c" / "glaucomma")
        setting = "data.classes=glaucoma=glaucomma"
        told = {"name": "glaucomma", "sites": ["c"], "like": "glaucoma", "setting": setting}
        one(root, "error", "", "", "class-misspelt", **told)
        with refuses("class-misspelt", name="glaucomma", like="glaucoma"):
            Folders(path=str(root)).open()
        assert found(root, classes="glaucoma=glaucomma") == []

    def test_where_classes_may_be_missing_a_misspelling_is_a_warning(self, root):
        tree(root, sites=["a", "b", "c"], classes={"glaucoma": 6, "normal": 6})
        (root / "c" / "glaucoma").rename(root / "c" / "glaucomma")
        assert found(root, min_per_class=0) == [("warning", "", "", "class-misspelt")]
        assert len(Folders(path=str(root), min_per_class=0).open().classes) == 3


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("agree")


COUNTS = st.fixed_dictionaries({"glaucoma": st.integers(0, 3), "normal": st.integers(1, 3)})


@given(COUNTS, COUNTS, st.sampled_from([0, 1, 2]), st.sampled_from([0, 8]), st.sampled_from([8, 9]), st.booleans())
@example({"glaucoma": 2, "normal": 3}, {"glaucoma": 3, "normal": 3}, 2, 0, 8, False)
@example({"glaucoma": 3, "normal": 3}, {"glaucoma": 3, "normal": 3}, 1, 0, 9, False)
@example({"glaucoma": 3, "normal": 3}, {"glaucoma": 3, "normal": 3}, 1, 0, 8, True)
def test_the_check_has_an_error_if_and_only_if_a_run_refuses_the_images(
    scratch, one, two, least, size, side, damaged
):
    root = scratch / files.digest(repr((one, two, side, damaged)).encode())
    for number, (site, classes) in enumerate((("a", one), ("b", two))):
        for label, count in classes.items():
            for i in range(count):
                save(
                    root / site / label / f"{i}.png",
                    noise(100 * number + 10 * i + len(label), side if number else 8),
                )
    if damaged:
        (root / "a" / "normal" / "bad.png").write_text("no image")
    for skip in (False, True):
        how = Folders(path=str(root), min_per_class=least, size=size, skip_bad=skip)
        errors = check_data(root, how=how).count("error")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                how.open()
                refused = False
            except DataError:
                refused = True
        assert bool(errors) == refused


class TestKinds:
    def test_sizes(self, root):
        save(tree(root) / "a" / "no" / "x.png", noise(99, 12))
        one(root, "error", "", "", "sizes-differ", sizes="'a' has 8x8 (12), 12x12 (1) and 'b' has 8x8 (12)")
        assert found(root, size=8) == []

    def test_grey_and_colour_at_one_site(self, root):
        save(tree(root) / "a" / "no" / "x.png", noise(99, grey=True))
        one(root, "warning", "a", "", "grey-and-colour", grey=1, colour=12)

    def test_grey_and_colour_sites(self, root):
        tree(root, sites=["a"], grey=True)
        tree(root, sites=["b"])
        one(root, "warning", "", "", "grey-sites", sites="'a'")


def test_a_table_with_many_mistakes_lists_them_all(root):
    tree(root, sites=["a"])
    lines = [f"a/{c}/{i}.png,a,{c}" for c in ("no", "yes") for i in range(6)]
    wrong = ["a/no/1.png,a,no", "../x.png,a,no", ",a,no", "a/no/gone.png,a,no"]
    (root / "manifest.csv").write_text("\n".join(["path,site,label", *lines, *wrong]))
    files = sorted(file for _, _, file, _ in found(root))
    assert files == ["../x.png", "a/no/gone.png", "manifest.csv, line 14", "manifest.csv, line 16"]


def test_prepared_files_are_checked_row_by_row(root):
    root.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    y = np.arange(20, dtype=np.uint8) % 2
    np.savez(root / "a.npz", train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])
    (root / "b.npz").write_text("no archive")
    got = found(root)
    assert [(severity, site) for severity, site, _, _ in got] == [("error", "a"), ("error", "a"), ("error", "b")]
    assert got[0][2] == "a.npz, test_x[0]"


def test_checking_tells_how_far_it_is(root):
    heard = []
    with listening(lambda *tick: heard.append(tick)):
        check_data(tree(root))
    assert heard[-1] == ("checking b", 12, 12)
