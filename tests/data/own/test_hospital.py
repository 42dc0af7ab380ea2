"""Images of hospitals: DICOM, 16 bits, patients, names that differ between sites, and near duplicates."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageEnhance
from pydicom.dataset import Dataset
from pydicom.pixels import apply_windowing
from pydicom.sequence import Sequence
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEGBaseline8Bit, JPEGLossless, RLELossless

import fedlgd
from fedlgd.core.errors import message
from fedlgd.data.dicom import open_image, windowed
from fedlgd.data.images import Depth, Header, ImageError, ImageFile
from fedlgd.data.own.check import check_data
from fedlgd.data.own.decode import held_out
from fedlgd.data.own.suite import Folders
from tests.data.dicoms import dataset, noisy, save_dicom
from tests.data.pictures import divided, noise, save, tree
from tests.errors import refuses

RAMP = np.array([[0, 1000, 2000, 3000, 4095]], np.uint16)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "sites"


def read(path, **depth):
    return ImageFile(path, path.parent.resolve()).read(Depth(**depth))


def values(path, **depth):
    return np.asarray(read(path, **depth).image).tolist()


def refused(path, words, code="cannot-show-image", **depth):
    with refuses(code) as caught:
        read(path, **depth)
    assert words in caught.value.problem
    return caught.value


def problems(root, **how):
    return [(p.severity, p.site, p.code) for p in check_data(root, 1, how=Folders(**how)).problems]


class TestDicom:
    def test_the_window_of_the_file_is_applied_after_rescaling(self, tmp_path):
        made = dataset(RAMP, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=3000.5, WindowWidth=4001)
        assert values(save_dicom(tmp_path / "x.dcm", made)) == [[0, 0, 128, 255, 255]]

    def test_monochrome1_is_inverted(self, tmp_path):
        made = dataset(RAMP, WindowCenter=2048, WindowWidth=4096)
        seen = values(save_dicom(tmp_path / "x.dcm", made))
        made.PhotometricInterpretation = "MONOCHROME1"
        assert values(save_dicom(tmp_path / "y.dcm", made)) == [[255 - value for value in seen[0]]]
        assert seen[0] == sorted(seen[0])

    def test_without_a_window_the_range_of_the_bits_is_used_and_it_is_said(self, tmp_path):
        picture = read(save_dicom(tmp_path / "x.dcm", dataset(RAMP)))
        assert np.asarray(picture.image).tolist() == [[0, 62, 125, 187, 255]]
        (remark,) = picture.remarks
        assert remark.code == "dicom-window"
        assert "12 bits" in remark.values["remark"]

    def test_signed_values_of_sixteen_bits(self, tmp_path):
        made = dataset(np.array([[-32768, 0, 32767]], np.int16), bits=16)
        assert values(save_dicom(tmp_path / "x.dcm", made)) == [[0, 128, 255]]

    def test_a_window_can_be_chosen_for_all_files(self, tmp_path):
        made = dataset(np.array([[-160, 40, 240]], np.int16), bits=16, WindowCenter=1, WindowWidth=2)
        assert values(save_dicom(tmp_path / "x.dcm", made), window=(40.5, 401)) == [[0, 128, 255]]

    def test_the_first_of_several_windows_is_used_and_it_is_said(self, tmp_path):
        made = dataset(RAMP, WindowCenter=[2048, 10], WindowWidth=[4096, 20])
        picture = read(save_dicom(tmp_path / "x.dcm", made))
        (remark,) = picture.remarks
        assert remark.code == "dicom-window"
        assert "2 windows" in remark.values["remark"]
        assert np.asarray(picture.image)[0, 2] == 125

    def test_a_voi_lut_is_applied(self, tmp_path):
        lut = Dataset()
        lut.LUTDescriptor, lut.LUTData = [4, 0, 8], [0, 10, 200, 255]
        lut["LUTData"].VR = "US"
        made = dataset(np.array([[0, 1, 2, 3]], np.uint16), VOILUTSequence=Sequence([lut]))
        made.VOILUTSequence[0]["LUTDescriptor"].VR = "US"
        assert values(save_dicom(tmp_path / "x.dcm", made)) == [[0, 10, 200, 255]]

    def test_colour_is_read_as_it_is(self, tmp_path):
        pixels = np.asarray(noise(1))
        path = save_dicom(tmp_path / "x.dcm", dataset(pixels, bits=8))
        assert np.array_equal(np.asarray(read(path).image), pixels)
        assert ImageFile(path, tmp_path.resolve()).header() == Header(8, 8, grey=False)

    def test_compressed_pixels_with_a_decoder_are_read(self, tmp_path):
        made = noisy(3)
        plain = values(save_dicom(tmp_path / "x.dcm", made))
        made.compress(RLELossless)
        assert values(save_dicom(tmp_path / "y.dcm", made)) == plain

    def test_compressed_pixels_without_a_decoder_are_refused(self, tmp_path):
        made = noisy(3)
        made.compress(RLELossless)
        path = save_dicom(tmp_path / "x.dcm", made, JPEGLossless)
        assert "gdcmconv" in refused(path, "JPEG Lossless").way_out

    def test_deflated_files_are_refused_before_they_are_unpacked(self, tmp_path):
        path = save_dicom(
            tmp_path / "x.dcm", dataset(np.zeros((4000, 4000), np.uint16)), DeflatedExplicitVRLittleEndian
        )
        assert path.stat().st_size < 10**6
        refused(path, "deflated")

    def test_several_frames_are_refused_with_a_way_out(self, tmp_path):
        made = dataset(RAMP, NumberOfFrames=5)
        assert "single files" in refused(save_dicom(tmp_path / "x.dcm", made), "5 frames").way_out

    def test_what_has_no_image_or_a_palette_is_refused(self, tmp_path):
        made = dataset(RAMP, PhotometricInterpretation="PALETTE COLOR")
        refused(save_dicom(tmp_path / "x.dcm", made), "PALETTE COLOR")
        del made.PhotometricInterpretation
        refused(save_dicom(tmp_path / "y.dcm", made), "without an image")
        made = dataset(RAMP)
        del made.PixelData
        refused(save_dicom(tmp_path / "z.dcm", made), "without integer pixels")

    def test_huge_images_and_cut_files_are_refused(self, tmp_path):
        refused(
            save_dicom(tmp_path / "x.dcm", dataset(RAMP, Rows=30_000)), "30000 pixels", "image-of-too-many-pixels"
        )
        whole = save_dicom(tmp_path / "y.dcm", noisy(1)).read_bytes()
        (tmp_path / "z.dcm").write_bytes(whole[:-20])
        refused(tmp_path / "z.dcm", "damaged", "image-damaged")

    def test_without_pydicom_the_way_out_is_the_extra(self, tmp_path, monkeypatch):
        path = save_dicom(tmp_path / "x.dcm", noisy(1))
        monkeypatch.setitem(sys.modules, "pydicom", None)
        assert "fedlgd[dicom]" in refused(path, "needs pydicom").way_out

    def test_files_without_a_suffix_are_found_by_their_content(self, root):
        for site in ("a", "b"):
            for k, label in enumerate(("no", "yes")):
                for i in range(6):
                    save_dicom(root / site / label / f"IM{i}", noisy(hash((site, k, i)) % 1000))
        (root / "a" / "DICOMDIR").write_text("an index")
        sites = Folders(path=str(root)).open().sites
        assert [len(site.train) + len(site.test) for site in sites] == [12, 12]
        assert "DICOM shown with the window of each file" in sites[0].note

    @settings(deadline=None, max_examples=60)
    @given(
        arrays(np.int16, 20),
        st.floats(-3000, 3000),
        st.floats(1.5, 5000),
        st.sampled_from(["LINEAR", "LINEAR_EXACT", "SIGMOID"]),
    )
    def test_the_window_is_that_of_the_standard(self, stored, centre, width, function):
        made = dataset(stored[None], bits=16)
        made.WindowCenter, made.WindowWidth, made.VOILUTFunction = f"{centre:.4f}", f"{width:.4f}", function
        centre, width = float(made.WindowCenter), float(made.WindowWidth)
        with np.errstate(over="ignore"):
            expected = (apply_windowing(stored, made).astype(float) + 32768) / 65535
        assert np.allclose(
            np.clip(windowed(stored.astype(float), centre, width, function), 0, 1), expected, atol=1e-6
        )


class TestSixteenBits:
    @pytest.mark.parametrize("suffix", ["png", "tif"])
    def test_a_pixel_is_the_value_divided_by_a_power_of_two(self, tmp_path, suffix):
        path = save(tmp_path / f"x.{suffix}", Image.fromarray(np.array([[0, 15, 16, 4095]], np.uint16)))
        assert values(path, bits=12) == [[0, 0, 1, 255]]
        assert values(path) == [[0, 0, 0, 15]]
        assert read(path).remarks[0].code == "sixteen-bits-nearly-black"
        assert read(path, bits=12).remarks == (("sixteen-bits", {"divisor": 16}),)

    def test_values_above_the_bits_are_refused(self, tmp_path):
        path = save(tmp_path / "x.png", Image.fromarray(np.array([[0, 4096]], np.uint16)))
        refused(path, "data.bits=12", bits=12)

    def test_training_and_prediction_read_them_alike(self, root):
        for i, site in enumerate("ab"):
            for k, label in enumerate(("no", "yes")):
                for j in range(5):
                    pixels = np.asarray(noise(100 * i + 10 * k + j, grey=True)).astype(np.uint16) * 16
                    save(root / site / label / f"{j}.png", Image.fromarray(pixels))
        whole = fedlgd.from_folders(root, bits=12, test_share=0.2)
        assert "16-bit values divided by 16" in whole.sites[0].note
        file = root / "a" / "no" / "0.png"
        stored = np.asarray(Image.open(file))
        for given_ in (file, Image.open(file), stored):
            assert whole.preparation.batch(given_)[1][0, 0].tolist() == (stored // 16).tolist()
        seen = [*whole.sites[0].train.x[:, 0].tolist(), *whole.sites[0].test.x[:, 0].tolist()]
        assert (stored // 16).tolist() in seen

    def test_the_copy_for_exported_models_reads_as_training_does(self, tmp_path):
        deep = save(tmp_path / "x.png", Image.fromarray(RAMP))
        scan = save_dicom(tmp_path / "x", noisy(1))
        assert np.asarray(open_image(deep, 12)).tolist() == values(deep, bits=12)
        assert np.asarray(open_image(scan)).tolist() == values(scan)


def patients_tree(root, sites="ab", patients=6, each=3):
    seed = 0
    for site in sites:
        for label in ("no", "yes"):
            for patient in range(patients):
                for i in range(each):
                    seed += 1
                    save(root / site / label / f"{label}{patient}_{i}.png", noise(seed))
    return root


class TestPatients:
    @settings(deadline=None, max_examples=300)
    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=80
        ),
        st.floats(0.01, 0.99),
        st.integers(0, 3),
    )
    def test_no_patient_is_ever_in_both_parts_and_every_class_is_trained(self, rows, share, seed):
        labels, prints = [label for label, _, _ in rows], [str(number).encode() for _, number, _ in rows]
        patients = [str(patient) if patient else "" for _, _, patient in rows]
        tests = held_out(labels, prints, share, seed, patients)
        for together in (patients, prints):
            parts = {}
            for name, test in zip(together, tests, strict=True):
                assert not name or parts.setdefault(name, test) == test
        assert {label for label, test in zip(labels, tests, strict=True) if not test} == {*labels}

    @settings(deadline=None, max_examples=100)
    @given(st.lists(st.integers(1, 5), min_size=2, max_size=20), st.floats(0.05, 0.95), st.randoms())
    def test_a_class_with_two_patients_is_in_both_parts_whatever_the_order(self, sizes, share, random):
        rows = [
            (str(patient), f"{patient}-{i}".encode()) for patient, size in enumerate(sizes) for i in range(size)
        ]
        tests = held_out(["a"] * len(rows), [p for _, p in rows], share, 0, [patient for patient, _ in rows])
        assert {*tests} == {True, False}
        shuffled = random.sample(rows, len(rows))
        again = held_out(
            ["a"] * len(rows), [p for _, p in shuffled], share, 0, [patient for patient, _ in shuffled]
        )
        assert dict(zip(rows, tests, strict=True)) == dict(zip(shuffled, again, strict=True))

    def test_a_pattern_finds_them_in_the_names_of_files(self, root):
        whole = fedlgd.from_folders(patients_tree(root), patient=r"^([a-z]+[0-9]+)_")
        assert "held out here by patient" in whole.sites[0].note
        assert [len(site.test) % 3 for site in whole.sites] == [0, 0]
        assert problems(root, patient=r"^([a-z]+[0-9]+)_") == []

    def test_a_column_of_the_table_names_them(self, root):
        patients_tree(root, patients=4, each=2)
        lines = [
            f"{file.relative_to(root)},{file.parts[-3]},{file.parent.name},{file.stem[:-2]}"
            for file in sorted(root.rglob("*.png"))
        ]
        (root / "manifest.csv").write_text("\n".join(["path,site,label,patient", *lines]))
        assert [len(site.test) % 2 for site in fedlgd.from_folders(root).sites] == [0, 0]
        (root / "manifest.csv").write_text("\n".join(["path,site,label,patient", lines[0][:-3] + ",", *lines[1:]]))
        assert "patient-incomplete" in [code for _, _, code in problems(root)]

    def test_dicom_names_them(self, root):
        for site in "ab":
            for k, label in enumerate(("no", "yes")):
                for i in range(8):
                    seed = 1000 * (site == "b") + 100 * k + i
                    save_dicom(root / site / label / f"{i}.dcm", noisy(seed, patient=f"{label}{i // 2}"))
        whole = fedlgd.from_folders(root, patient="dicom")
        assert [len(site.test) % 2 for site in whole.sites] == [0, 0]
        assert problems(root, patient="dicom") == []
        assert "dicom-patients-unused" in [code for _, _, code in problems(root)]
        save_dicom(root / "a" / "no" / "x.dcm", noisy(77, patient=""))
        assert "no-patient-id" in [code for _, _, code in problems(root, patient="dicom")]

    def test_an_owner_who_split_a_patient_is_told(self, root):
        divided(root)
        save(root / "a" / "Testing" / "no" / "p1_9.png", noise(5000))
        save(root / "a" / "Training" / "no" / "p1_1.png", noise(5001))
        pattern = r"(p1|^[0-9])"
        assert ("error", "a", "patient-in-both-parts") in problems(root, patient=pattern)
        assert "of patients" in fedlgd.from_folders(root, patient=pattern).by_name["a"].note

    @pytest.mark.parametrize(
        ("pattern", "code"),
        [
            ("(", "patient-no-pattern"),
            ("no group", "patient-without-group"),
            ("(two)(groups)", "patient-without-group"),
        ],
    )
    def test_a_pattern_that_is_none_is_refused(self, root, pattern, code):
        with refuses(code, pattern=pattern):
            fedlgd.from_folders(tree(root), patient=pattern)

    def test_names_without_a_patient_are_listed(self, root):
        found = problems(tree(root, sites=["a"]), patient=r"^(p[0-9]+)_")
        assert found.count(("error", "a", "name-without-patient")) == 12


class TestNames:
    def test_columns_of_a_table_can_have_other_names(self, root):
        tree(root, sites=["a"])
        lines = [f"{file.relative_to(root)};A;{file.parent.name}" for file in sorted(root.rglob("*.png"))]
        table = root / "export.csv"
        table.write_text("\n".join(["File;Hospital;Diagnosis", *lines]))
        (site,) = fedlgd.from_folders(table, columns="path=file,site=Hospital,label=DIAGNOSIS").sites
        assert (site.name, site.classes) == ("A", ("no", "yes"))
        with refuses("table-without-column"):
            fedlgd.from_folders(table)
        with refuses("unknown-column", name="labels"):
            fedlgd.from_folders(table, columns="labels=x")

    def test_classes_can_have_other_names_at_other_sites(self, root, tmp_path):
        tree(root, sites=["a"], classes={"glaucoma": 6, "normal": 6})
        tree(root, sites=["b"], classes={"Glaucoma": 6, "0": 6})
        tree(root, sites=["c"], classes={"0": 6, "1": 6})
        text = "glaucoma=Glaucoma=c/0,normal=0=c/1"
        whole = fedlgd.from_folders(root, classes=text)
        assert whole.classes == ("glaucoma", "normal")
        assert all(site.train.counts(2).min() > 0 for site in whole.sites)
        file = tmp_path / "names.toml"
        file.write_text('glaucoma = ["Glaucoma", "c/0"]\nnormal = ["0", "c/1"]\n')
        assert fedlgd.from_folders(root, classes=str(file)).digest == whole.digest
        assert not [text for severity, _, text in problems(root, classes=text) if severity == "error"]

    def test_prepared_files_too_and_the_cache_sees_it(self, root):
        root.mkdir()
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (20, 8, 8), np.uint8), np.arange(20, dtype=np.uint8) % 2
        np.savez(root / "a.npz", train_x=x, train_y=y, test_x=255 - x[:4], test_y=y[:4])
        assert fedlgd.from_folders(root).classes == ("0", "1")
        swapped = fedlgd.from_folders(root, classes="z=0,a=1").sites[0]
        assert swapped.classes == ("a", "z")
        assert swapped.train.y.tolist() == (1 - y).tolist()

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            *((text, "names-malformed") for text in ("glaucoma", "a=", "=a")),
            ("a=b,c=b", "class-mapped-twice"),
            ("missing.toml", "names-file-unreadable"),
        ],
    )
    def test_a_map_that_makes_no_sense_is_refused(self, root, text, code):
        with refuses(code):
            fedlgd.from_folders(tree(root), classes=text)


class TestLookalikes:
    def photo(self, seed):
        """Smooth blobs: what survives compression, unlike noise."""
        return noise(seed, side=6).resize((64, 64), Image.Resampling.BICUBIC)

    def changed(self, image):
        buffer = io.BytesIO()
        ImageEnhance.Brightness(image.resize((48, 48))).enhance(0.9).save(buffer, "JPEG", quality=70)
        return Image.open(io.BytesIO(buffer.getvalue())).resize((64, 64))

    def make(self, root):
        seed = 0
        for site in "ab":
            for part, count in (("train", 10), ("test", 4)):
                for label in ("no", "yes"):
                    for i in range(count):
                        seed += 1
                        save(root / site / part / label / f"{i}.png", self.photo(seed))
        return root

    def test_a_test_image_that_is_a_changed_training_image_is_found_and_no_other(self, root):
        self.make(root)
        save(
            root / "b" / "test" / "no" / "like.png", self.changed(Image.open(root / "a" / "train" / "no" / "3.png"))
        )
        (found,) = check_data(root, 1).problems
        assert (found.severity, found.site, found.file) == ("warning", "b", "b/test/no/like.png")
        wanted = message("looks-like-training", other="a/train/no/3.png", other_site="a")
        assert f"{found.problem}; {found.way_out}" == wanted
        for _ in range(2):  # made, and from the cache
            with pytest.warns(UserWarning, match="1 test image looks"):
                whole = fedlgd.from_folders(root)
        assert "1 test image looks" in whole.by_name["b"].note
        assert "look like" not in whole.by_name["a"].note

    def test_an_exact_copy_is_not_counted_twice(self, root):
        self.make(root)
        save(root / "a" / "test" / "no" / "copy.png", Image.open(root / "a" / "train" / "no" / "3.png"))
        (found,) = check_data(root, 1).problems
        assert found.code == "test-image-in-training"


def test_notes_name_missing_classes_skipped_files_and_mixed_formats(root):
    tree(root)
    save(root / "a" / "rare" / "1.png", noise(900))
    save(root / "a" / "rare" / "2.png", noise(901))
    save(root / "a" / "no" / "x.bmp", noise(902))
    save_dicom(root / "a" / "no" / "x.dcm", noisy(903))
    (root / "a" / "no" / "notes.txt").write_text("stray")
    with pytest.warns(UserWarning, match="folders: 1"):
        whole = fedlgd.from_folders(root, min_per_class=0)
    a, b = (whole.by_name[name].note for name in "ab")
    assert "mixed formats: PNG colour (14), BMP colour (1), DICOM grey (1)" in a
    assert "folders: 1" in a
    assert "class 'rare'" in b
    assert {"formats-at-site", "formats-between-sites"} <= {code for _, _, code in problems(root)}


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**6), st.binary(max_size=6), st.booleans())
def test_no_damage_to_dicom_ends_in_anything_but_an_image_or_our_error(tmp_path_factory, where, what, compressed):
    made = noisy(1)
    if compressed:
        made.compress(RLELossless)
    path = save_dicom(tmp_path_factory.mktemp("damaged") / "x.dcm", made)
    content = path.read_bytes()
    where %= len(content)
    path.write_bytes(content[:where] + what + content[where + len(what) :] if what else content[:where])
    try:
        ImageFile(path, path.parent.resolve()).header()
        picture = read(path)
    except ImageError:
        return
    assert picture.image.mode in ("L", "RGB")


def test_jpeg_inside_dicom_is_decoded_by_pillow(tmp_path):
    from pydicom.encaps import encapsulate

    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(buffer, "JPEG")
    made = dataset(np.zeros((8, 8), np.uint8), bits=8)
    made.PixelData = encapsulate([buffer.getvalue()])
    made["PixelData"].is_undefined_length = True
    seen = values(save_dicom(tmp_path / "x.dcm", made, JPEGBaseline8Bit))
    assert abs(np.array(seen) - 200).max() <= 2
