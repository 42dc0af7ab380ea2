"""A user's own folders as a federation: layouts, splits, sizes, scaling, what is kept, and what is refused."""

import logging
import os
import stat
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import fedlgd
from fedlgd.core.errors import FedlgdError, SettingError
from fedlgd.core.meter import listening
from fedlgd.core.types import Scale
from fedlgd.data.own import decode
from fedlgd.data.own.suite import Folders
from tests.data.pictures import divided, noise, save, tree
from tests.errors import refuses


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A data home of the test's own, and a folder for its sites."""
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "sites"


def load(path, **settings):
    return Folders(path=str(path), **settings).open()


def counts(part, classes=2):
    return part.counts(classes).tolist()


def pixels(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def refused(path, code, settings=None, **values):
    """The error of a folder that cannot be opened. If it is the first problem that was found, `code` is of that."""
    with pytest.raises(FedlgdError) as caught:
        load(path, **(settings or {}))
    error = caught.value
    assert error.values.get("problem_code", error.code) == code, str(error)
    assert {name: error.values[name] for name in values} == values
    return error


class TestLayouts:
    def test_a_folder_for_each_site_with_a_folder_for_each_class(self, root):
        got = load(tree(root))
        assert [site.name for site in got.sites] == ["a", "b"]
        assert got.classes == ("no", "yes")
        assert got.shape == (3, 8, 8)
        assert counts(got.sites[0].train) == [5, 5]
        assert counts(got.sites[0].test) == [1, 1]

    @pytest.mark.parametrize("names", [("train", "test"), ("Training", "Testing"), ("TRAIN", "Test")])
    def test_parts_given_by_the_owner_are_kept(self, root, names):
        got = load(divided(root, *names))
        for site in got.sites:
            assert counts(site.train) == [4, 4]
            assert counts(site.test) == [2, 2]
            assert "held out" not in site.note
        wanted = pixels(Image.open(root / "a" / names[1] / "yes" / "1.png"))
        assert any(torch.equal(image, wanted) for image in got.sites[0].test.x[got.sites[0].test.y == 1])

    def test_sites_may_differ_in_having_parts(self, root):
        divided(root)
        tree(root, sites=["c"])
        got = load(root)
        assert counts(got.by_name["c"].test) == [1, 1]
        assert counts(got.by_name["a"].test) == [2, 2]

    def test_training_images_alone_are_divided(self, root):
        tree(root / "a", sites=["train"])
        got = load(root)
        assert counts(got.sites[0].test) == [1, 1]
        assert "held out" in got.sites[0].note

    def test_a_table_of_images(self, root):
        tree(root)
        lines = ["path,site,label,split"]
        for i in range(6):
            lines += [
                f"{s}/{c}/{i}.png,north,{c} eye,{'test' if i < 2 else 'Train'}" for s in "ab" for c in ("no", "yes")
            ]
        (root / "manifest.csv").write_text("\n".join(lines))
        for path in (root, root / "manifest.csv"):
            got = load(path)
            assert got.name == path.stem
            assert [site.name for site in got.sites] == ["north"]
            assert got.classes == ("no eye", "yes eye")
            assert counts(got.sites[0].test) == [4, 4]

    def test_a_table_as_office_programs_write_it(self, root):
        tree(root, sites=["a"])
        rows = [f"a\\{c}\\{i}.png;Müller;{c}" for c in ("no", "yes") for i in range(6)]
        text = "\ufeff" + "\r\n".join([" Path ;SITE;Label", *rows, ";;", ""])
        (root / "list.csv").write_text(text, encoding="utf-8")
        got = load(root / "list.csv")
        assert [site.name for site in got.sites] == ["Müller"]
        assert counts(got.sites[0].train) == [5, 5]

    @pytest.mark.parametrize("save_as", [np.savez, np.savez_compressed])
    def test_prepared_files(self, root, save_as):
        root.mkdir()
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (20, 8, 8), np.uint8), np.arange(20, dtype=np.uint8) % 2
        save_as(
            root / "a.npz", train_x=x, train_y=y, test_x=rng.integers(0, 256, (4, 8, 8), np.uint8), test_y=y[:4]
        )
        save_as(root / "b.npz", train_x=np.stack([x] * 3, -1), train_y=y)
        got = load(root)
        assert torch.equal(got.by_name["a"].train.x[:, 0], torch.from_numpy(x))
        assert counts(got.by_name["a"].test) == [2, 2]
        assert counts(got.by_name["b"].train) == [8, 8]
        assert [site.name for site in load(root / "a.npz").sites] == ["a"]

    def test_classes_are_in_the_order_people_count(self, root):
        classes = dict.fromkeys(("10", "9", "stage 2", "Stage 10", "1"), 2)
        assert load(tree(root, classes=classes)).classes == ("1", "9", "10", "stage 2", "Stage 10")

    def test_what_systems_leave_behind_is_skipped_silently(self, root):
        tree(root)
        for junk in (".DS_Store", "a/Thumbs.db", "a/no/.hidden.png", "a/no/desktop.ini", "b/__MACOSX/x.png"):
            (root / junk).parent.mkdir(exist_ok=True)
            (root / junk).write_text("junk")
        (root / ".git").mkdir()
        assert len(load(root).sites) == 2

    def test_other_files_are_skipped_with_a_warning_that_counts_them(self, root):
        tree(root)
        for stray in ("notes.txt", "a/notes.pdf", "a/no/scan.doc", "a/stray.png"):
            (root / stray).write_text("stray")
        with pytest.warns(UserWarning, match="folders: 4"):
            assert len(load(root).by_name["a"].train) == 10

    def test_from_folders_takes_the_settings_of_the_suite(self, root):
        got = fedlgd.from_folders(tree(root), size=4, limit=4)
        assert got.shape == (3, 4, 4)
        assert len(got.sites[0].train) == 4
        with refuses("suite-has-no-setting", key="sise"):
            fedlgd.from_folders(root, sise=4)


class TestRefusedLayouts:
    def test_nothing_there(self, root):
        refused(root, "no-such-path")
        refused("", "no-data-path")

    def test_an_empty_folder(self, root):
        root.mkdir()
        refused(root, "no-site-with-images", found="nothing")

    def test_another_file(self, tmp_path):
        (tmp_path / "x.zip").write_text("")
        refused(tmp_path / "x.zip", "unknown-layout")

    def test_images_of_one_site_without_a_site_folder(self, root):
        tree(root.parent, sites=["sites"])
        refused(root, "no-class-folders", name="no")

    def test_parts_without_a_site_folder(self, root):
        tree(root, sites=["train", "test"])
        refused(root, "parts-above-sites", parts=["test", "train"])

    def test_images_in_a_part_without_classes(self, root):
        save(root / "a" / "train" / "1.png", noise(1))
        refused(root, "no-class-folders-in-part")

    def test_a_validation_part(self, root):
        divided(root, "train", "test")
        save(root / "a" / "val" / "no" / "1.png", noise(1))
        refused(root, "folder-beside-parts", name="val")

    def test_two_training_parts(self, root):
        divided(root, "train", "test")
        save(root / "a" / "Training" / "no" / "1.png", noise(1))
        refused(root, "folder-beside-parts")

    def test_test_images_alone(self, root):
        tree(root / "a", sites=["test"])
        refused(root, "no-train-folder")

    def test_a_single_class(self, root):
        refused(tree(root, classes={"no": 3}), "only-one-class", classes=("no",))

    def test_a_class_under_two_names(self, root):
        tree(root, sites=["a"], classes={"Glaucoma": 3, "no": 3})
        tree(root, sites=["b"], classes={"glaucoma ": 3, "no": 3})
        error = refused(root, "class-names-alike", {"min_per_class": 0})
        assert "'Glaucoma' (site 'a')" in error.values["problem"]
        assert "data.classes='Glaucoma=glaucoma '" in error.values["way_out"]

    def test_a_site_without_a_class(self, root):
        tree(root, sites=["a"])
        tree(root, sites=["b"], classes={"no": 3})
        refused(root, "class-too-small-at-site", site="b", label="yes", count=0)
        assert counts(load(root, min_per_class=0).by_name["b"].train) == [2, 0]
        refused(root, "class-too-small-at-site", {"min_per_class": 5}, least=5)

    def test_a_folder_that_leads_out_of_the_tree(self, root, tmp_path):
        tree(root)
        tree(tmp_path / "elsewhere", sites=["c"])
        (root / "c").symlink_to(tmp_path / "elsewhere" / "c")
        refused(root, "link-out-of-folder")

    def test_npz_and_folders_together(self, root):
        tree(root)
        np.savez(root / "c.npz", train_x=np.zeros((1, 8, 8), np.uint8), train_y=np.zeros(1, np.uint8))
        refused(root, "npz-beside-folders")

    @pytest.mark.parametrize(
        ("content", "code"),
        [(b"", "image-empty"), (b"PK\x03\x04 not really", "npz-unreadable"), (b"text", "npz-unreadable")],
    )
    def test_an_npz_that_is_none(self, root, content, code):
        root.mkdir()
        (root / "a.npz").write_bytes(content)
        refused(root, code)

    def test_an_npz_of_python_objects_is_never_unpickled(self, root):
        root.mkdir()

        class Trap:
            def __reduce__(self):
                return (pytest.fail, ("it was unpickled",))

        np.savez(
            root / "a.npz", train_x=np.array([Trap()], object), train_y=np.zeros(1, np.uint8), allow_pickle=True
        )
        refused(root, "npz-unreadable")

    def test_an_npz_that_would_unpack_to_too_much(self, root, monkeypatch):
        monkeypatch.setattr("fedlgd.data.arrays.MAX_UNPACKED_BYTES", 10_000)
        root.mkdir()
        np.savez_compressed(
            root / "a.npz", train_x=np.zeros((200, 8, 8), np.uint8), train_y=np.zeros(200, np.uint8)
        )
        refused(root, "npz-unreadable")

    @pytest.mark.parametrize("name", ["a\nb", "x" * 101, os.fsdecode(b"\xff")])
    def test_a_site_whose_name_no_table_can_hold(self, root, name):
        assert str(refused(tree(root, sites=[name]), "invalid-name", what="site")).isprintable()


class TestRefusedTables:
    def table(self, root, *lines, head="path,site,label,split"):
        tree(root, sites=["a"])
        (root / "manifest.csv").write_text("\n".join([head, *lines]))
        return root

    def test_without_a_column(self, root):
        refused(self.table(root, "a/no/1.png,a", head="path,site"), "table-without-column", missing=["label"])

    def test_without_lines(self, root):
        refused(self.table(root), "table-without-images")

    @pytest.mark.parametrize("path", ["../secret.png", "/etc/hostname", "a/../../secret.png", "link.png"])
    def test_a_path_that_leads_out(self, root, path):
        save(root.parent / "secret.png", noise(1))
        self.table(root, f"{path},a,no,train", "a/yes/1.png,a,yes,train", "a/no/1.png,a,no,test")
        (root / "link.png").symlink_to(root.parent / "secret.png")
        refused(root, "image-outside")

    def test_an_absolute_path_inside_is_fine(self, root):
        self.table(root, *(f"{root.resolve()}/a/{c}/{i}.png,a,{c}," for c in ("no", "yes") for i in range(3)))
        assert len(load(root).sites) == 1

    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ("a/no/1.png,a,no,validation", "row-with-unknown-split"),
            (",a,no,train", "row-without-path"),
            ("a/no/1.png,a,,train", "invalid-name"),
            ("a/no/1.png,,no,train", "invalid-name"),
            ("a/no/0.png,a,yes,train", "row-listed-twice"),
            ("a/no/1.png,a,no,", "split-incomplete"),
            ("a/no/1.png,b,no,test", "split-incomplete"),
        ],
    )
    def test_a_line_that_makes_no_sense(self, root, line, code):
        refused(self.table(root, "a/no/0.png,a,no,train", line), code)

    def test_a_file_that_is_not_there(self, root):
        self.table(root, "a/no/0.png,a,no,", "a/no/gone.png,a,yes,")
        refused(root, "image-cannot-be-opened")

    def test_a_table_that_is_a_link_out_of_the_folder_or_a_pipe_is_not_opened(self, root):
        self.table(root, "a/no/0.png,a,no,")
        (root / "manifest.csv").rename(root.parent / "manifest.csv")
        (root / "manifest.csv").symlink_to(root.parent / "manifest.csv")
        refused(root, "image-outside")
        (root / "manifest.csv").unlink()
        os.mkfifo(root / "manifest.csv")
        refused(root, "image-not-a-file")

    def test_what_is_no_text(self, root):
        self.table(root)
        (root / "manifest.csv").write_bytes(b"path,site,label\n\xff\xfe\x00,a,b\n")
        refused(root, "table-unreadable")


class TestSizes:
    def test_images_of_different_sizes_are_refused_with_their_sizes(self, root):
        tree(root)
        save(root / "b" / "no" / "large.png", noise(99, 12))
        assert "8x8 (12), 12x12 (1)" in refused(root, "sizes-differ").values["sizes"]

    def test_also_between_sites_and_before_anything_is_decoded(self, root, monkeypatch):
        tree(root, sites=["a"])
        tree(root, sites=["b"], side=12)
        monkeypatch.setattr(decode, "decode", lambda *_: pytest.fail("it was decoded"))
        refused(root, "sizes-differ", sizes="'a' has 8x8 (12) and 'b' has 12x12 (12)")

    def test_resized_and_said_so(self, root):
        tree(root, sites=["a"])
        tree(root, sites=["b"], side=12)
        got = load(root, size=10, fit="pad")
        assert got.shape == (3, 10, 10)
        assert "resized to 10x10 (bilinear, pad)" in got.sites[0].note

    def test_one_size_that_is_not_square_is_kept(self, root):
        for i in range(4):
            for label in ("no", "yes"):
                save(root / "a" / label / f"{i}.png", noise(i + 10 * len(label)).resize((9, 6)))
        assert load(root).shape == (3, 6, 9)


class TestColour:
    def test_grey_becomes_three_equal_channels_without_taking_three_times_the_space(self, root):
        x = load(tree(root, grey=True)).sites[0].train.x
        assert torch.equal(x[:, 0], x[:, 2])
        assert x.stride()[1] == 0

    def test_one_colour_image_makes_its_site_colour(self, root):
        tree(root, sites=["a"], grey=True)
        save(root / "a" / "no" / "colour.png", noise(99))
        site = load(root).sites[0]
        every = torch.cat([site.train.x, site.test.x])
        assert any(torch.equal(image, pixels(noise(99))) for image in every)

    def test_all_can_be_made_grey(self, root):
        x = load(tree(root), colour="grey").sites[0].train.x
        assert torch.equal(x[:, 0], x[:, 1])


class TestScaling:
    def test_half_is_the_default(self, root):
        assert load(tree(root)).sites[0].train.scale == Scale()

    def test_own_is_the_mean_and_std_of_the_training_pixels_of_each_site(self, root):
        divided(root)
        got = load(root, scaling="own")
        for site in got.sites:
            x = site.train.take(slice(None)).x.double()
            assert x.mean((0, 2, 3)).abs().max() < 1e-5
            assert (x.std((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-5
            assert site.test.scale == site.train.scale
        assert got.sites[0].train.scale != got.sites[1].train.scale
        assert "training pixels of the site" in got.sites[0].note

    def test_shared_is_that_of_all_training_pixels(self, root):
        got = load(tree(root), scaling="shared")
        x = torch.cat([site.train.take(slice(None)).x for site in got.sites]).double()
        assert x.mean((0, 2, 3)).abs().max() < 1e-5
        assert got.sites[0].train.scale == got.sites[1].train.scale

    def test_a_site_of_one_colour_stays_finite(self, root):
        for label in ("no", "yes"):
            for part in ("train", "test"):
                save(root / "a" / part / label / "1.png", Image.new("L", (8, 8), 40))
        assert torch.isfinite(load(root, scaling="own").sites[0].train.take(slice(None)).x).all()


class TestSplit:
    def test_copies_of_an_image_never_fall_on_both_sides(self, root):
        tree(root, sites=["a"])
        for i in range(6):
            save(root / "a" / "no" / f"copy{i}.bmp", Image.open(root / "a" / "no" / f"{i}.png"))
        site = load(root, test_share=0.5).sites[0]
        trained = {image.numpy().tobytes() for image in site.train.x}
        assert not any(image.numpy().tobytes() in trained for image in site.test.x)
        assert counts(site.test) == [6, 3]

    def test_the_seed_and_the_share_decide(self, root):
        tree(root)
        first, again, other = (load(root, split_seed=seed).digest for seed in (0, 0, 1))
        assert first == again != other
        assert counts(load(root, test_share=0.5).sites[0].test) == [3, 3]

    def test_the_names_of_files_do_not_decide(self, root, tmp_path):
        tree(root, sites=["a"])
        for i, file in enumerate(sorted((root / "a" / "no").iterdir())):
            save(tmp_path / "other" / "a" / "no" / f"z{9 - i}.bmp", Image.open(file))
        (tmp_path / "other" / "a" / "yes").symlink_to(tmp_path / "other" / "a" / "no")
        ours, theirs = load(root).sites[0], load(tmp_path / "other").sites[0]
        (held,), (also,) = ours.test.x[ours.test.y == 0], theirs.test.x[theirs.test.y == 0]
        assert torch.equal(held, also)

    def test_an_owners_test_image_that_is_also_trained_on_is_noted(self, root):
        divided(root)
        save(root / "b" / "Testing" / "no" / "copy.bmp", Image.open(root / "a" / "Training" / "no" / "1.png"))
        got = load(root)
        assert "1 test image also" in got.by_name["b"].note
        assert "also" not in got.by_name["a"].note


class TestKept:
    def test_decoded_once_and_mapped_afterwards(self, root, monkeypatch):
        first = load(tree(root))
        monkeypatch.setattr(decode, "decode", lambda *_: pytest.fail("decoded again"))
        again = load(root)
        assert again.digest == first.digest
        assert load(root, scaling="own").shape == first.shape

    @pytest.mark.parametrize("change", ["pixels", "name", "new", "gone"])
    def test_any_change_of_the_files_is_seen(self, root, change):
        before = load(tree(root)).digest
        file = root / "a" / "no" / "1.png"
        times = file.stat()
        if change == "pixels":
            save(file, noise(77))
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        elif change == "name":
            file.rename(root / "a" / "yes" / "moved.png")
        elif change == "new":
            save(root / "a" / "no" / "new.png", noise(78))
        else:
            file.unlink()
        assert load(root).digest != before

    def test_only_the_owner_can_look_into_the_folder_of_decoded_images(self, root, home):
        load(tree(root))
        assert stat.S_IMODE((home / decode.FOLDER).stat().st_mode) == 0o700
        assert len(list((home / decode.FOLDER).iterdir())) == 3  # two sites, and what looks the same

    def test_a_home_that_cannot_be_written_costs_only_time(self, root, tmp_path, monkeypatch, caplog):
        (tmp_path / "file").touch()
        monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "file" / "home"))
        with caplog.at_level(logging.WARNING):
            assert len(load(tree(root)).sites) == 2
        assert "cannot cache" in caplog.text

    def test_decoding_tells_how_far_it_is(self, root):
        heard = []
        with listening(lambda *tick: heard.append(tick)):
            load(tree(root))
        assert ("decoding a", 12, 12) in heard

    def test_a_bad_file_leaves_nothing_half_made(self, root, home):
        tree(root)
        (root / "b" / "no" / "1.png").write_bytes((root / "b" / "no" / "1.png").read_bytes()[:-30])
        refused(root, "image-damaged")
        assert not [p for p in (home / decode.FOLDER).iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": -1}, "data.size is -1"),
        ({"size": 5000}, "data.size is 5000"),
        ({"fit": "squash"}, "stretch, crop, pad"),
        ({"colour": "blue"}, "auto, grey"),
        ({"scaling": "full"}, "half, own, shared"),
        ({"test_share": 0.0}, "data.test_share is 0.0"),
        ({"test_share": float("nan")}, "data.test_share is nan"),
        ({"split_seed": -1}, "data.split_seed"),
        ({"min_per_class": -1}, "data.min_per_class"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(SettingError, match=words):
        Folders(**settings)


def test_a_clean_tree_gives_no_warning(root):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load(tree(root)).sites) == 2
