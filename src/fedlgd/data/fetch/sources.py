"""Where the published data sets live, under which terms, and what their files hash to. Data, no code.

Every address, size and hash here stands in at least one public place besides this file (docs/data-fetch.md
names them); where none was found there is none. The hash decides, not the mirror.
"""

from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """One file as its authors publish it. hash: "md5:..." or "sha256:...", "" if unknown; size 0: unknown."""

    name: str
    urls: tuple[str, ...] = ()
    hash: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data set: its terms, its files, what they are prepared into (below the data home) and how big that is.

    counts: the training and test images of each published release. by_hand: how to get it where no program can.
    """

    name: str
    what: str
    terms: str
    page: str
    files: tuple[Original, ...] = ()
    makes: tuple[str, ...]
    room: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    by_hand: str = ""


def _mnist(name: str, sha256: str, size: int) -> Original:
    homes = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    return Original(name=name, urls=tuple(home + name for home in homes), hash=f"sha256:{sha256}", size=size)


def _at(home: str, name: str, digest: str, size: int = 0) -> Original:
    return Original(name=name, urls=(home + name,), hash=digest, size=size)


LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers/"
GANIN = "http://yaroslav.ganin.net/"
KAGGLE = "https://www.kaggle.com/datasets/prasunroy/synthetic-digits"

DIGITS = (
    Source(
        name="mnist",
        what="MNIST, handwritten digits (LeCun, Cortes, Burges)",
        terms="CC BY-SA 3.0",
        page="http://yann.lecun.com/exdb/mnist/",
        files=(
            _mnist(
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9_912_422,
            ),
            _mnist(
                "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                28_881,
            ),
            _mnist(
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                1_648_877,
            ),
            _mnist(
                "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                4_542,
            ),
        ),
        makes=("mnist.npz",),
        room=55 * MB,
        counts=((60_000, 10_000),),
    ),
    Source(
        name="svhn",
        what="SVHN, house numbers from street photographs, cropped digits (Netzer et al.)",
        terms="non-commercial use only",
        page=HOUSE_NUMBERS,
        files=(
            _at(
                HOUSE_NUMBERS,
                "train_32x32.mat",
                "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                182_040_794,
            ),
            _at(
                HOUSE_NUMBERS,
                "test_32x32.mat",
                "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                64_275_384,
            ),
        ),
        makes=("svhn.npz",),
        room=306 * MB,
        counts=((73_257, 26_032),),
    ),
    Source(
        name="usps",
        what="USPS, digits from envelopes (Hull)",
        terms="no licence stated; cite Hull 1994",
        page="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        files=(
            _at(LIBSVM, "usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
            _at(LIBSVM, "usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
        ),
        makes=("usps.npz",),
        room=10 * MB,
        counts=((7_291, 2_007),),
    ),
    Source(
        name="mnist_m",
        what="MNIST-M, MNIST digits blended into photographs (Ganin et al.)",
        terms="no licence stated; made from MNIST and BSDS500 photographs, cite Ganin et al. 2016",
        page=GANIN,
        files=(
            Original(
                name="mnist_m.tar.gz",
                urls=(
                    "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
                    "https://drive.google.com/uc?export=download&id=0B_tExHiYS-0veklUZHFYT19KYjg&confirm=t",
                ),
                hash="md5:859df31c91afe82e80e5012ba928f279",
            ),
        ),
        makes=("mnist_m.npz",),
        room=215 * MB,
        counts=((59_001, 9_001), (60_000, 10_000)),
        by_hand=(
            f"get mnist_m.tar.gz (the unpacked version) from {GANIN} and put it, or its folder mnist_m, into a "
            "folder DIR; folders DIR/mnist_m/train/<digit> and DIR/mnist_m/test/<digit> of images do as well"
        ),
    ),
    Source(
        name="synth_ganin",
        what="SynthDigits, digits drawn with fonts (Ganin et al.)",
        terms="no licence stated; cite Ganin et al. 2016",
        page=GANIN,
        makes=("synth_ganin.npz",),
        room=1_510 * MB,
        counts=((479_400, 9_553),),
        by_hand=(
            f"get SynthDigits.zip from {GANIN} in a browser (it lies on Google Drive, which asks a person) and put "
            "it, or its files synth_train_32x32.mat and synth_test_32x32.mat, into a folder DIR"
        ),
    ),
    Source(
        name="synth_folder",
        what="synthetic digits on COCO photographs, 12 000 images (Roy et al.); not Ganin's SynthDigits",
        terms="see its Kaggle page",
        page=KAGGLE,
        makes=("synth_folder.npz",),
        room=150 * MB,
        counts=((10_000, 2_000),),
        by_hand=(
            f"log in at {KAGGLE}, download archive.zip and put it into a folder DIR, or unpack it there, so that "
            "DIR/synthetic_digits/imgs_train/<digit> and DIR/synthetic_digits/imgs_valid/<digit> hold images"
        ),
    ),
)

CIFAR = (
    Source(
        name="cifar10",
        what="CIFAR-10, the photographs that CIFAR-10-C is made of (Krizhevsky)",
        terms="no licence stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            _at(
                "https://www.cs.toronto.edu/~kriz/",
                "cifar-10-python.tar.gz",
                "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                170_498_071,
            ),
        ),
        makes=("cifar10.npz", "cifar10_test.npz"),
        room=216 * MB,
        counts=((50_000, 10_000),),
    ),
    Source(
        name="cifar10c",
        what="CIFAR-10-C, 19 corruptions of the CIFAR-10 test photographs (Hendrycks, Dietterich)",
        terms="CC BY 4.0",
        page="https://zenodo.org/records/2535967",
        files=(
            Original(
                name="CIFAR-10-C.tar",
                urls=("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",),
                hash="sha256:c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
                size=2_918_471_680,
            ),
        ),
        makes=("CIFAR-10-C",),
        room=2_919 * MB,
    ),
)

RETINA_LAYOUT = "sort the images into {home}/retina/{site}/Training|Testing/glaucoma|normal"

RETINA = (
    Source(
        name="drishti",
        what="Drishti-GS, 101 fundus photographs from Madurai (Sivaswamy et al.)",
        terms="for research; see its page",
        page="http://cvit.iiit.ac.in/projects/mip/drishti-gs/mip-dataset2/Home.php",
        makes=("retina/drishti",),
        by_hand=(
            "ask for it on its page; its folders Training (50) and Test (51) are the two parts, the diagnosis of "
            f"each image is in its spreadsheet; {RETINA_LAYOUT}"
        ),
    ),
    Source(
        name="acrima",
        what="ACRIMA, 705 crops around the optic disc from Valencia (Diaz-Pinto et al.)",
        terms="CC BY 4.0, says its page",
        page="https://figshare.com/s/c2d31f850af14c5b5232",
        makes=("retina/acrima",),
        by_hand=(
            "download the archive on its page (a figshare link that only a browser can follow); _g_ in a file name "
            f"means glaucoma; there is no official split, so choose one and write it down; {RETINA_LAYOUT}"
        ),
    ),
    Source(
        name="rim_one",
        what="RIM-ONE DL, 485 crops around the optic disc from three Spanish hospitals (Fumero et al.)",
        terms="research and education only; no copies, no redistribution, no commercial use",
        page="https://github.com/miag-ull/rim-one-dl",
        files=(Original(name="RIM-ONE_DL_images.zip", urls=("https://bit.ly/rim-one-dl-images",)),),
        makes=("retina/rim_one",),
        room=300 * MB,
        by_hand="follow 'Download images' on its page and put RIM-ONE_DL_images.zip into a folder DIR",
    ),
    Source(
        name="refuge",
        what="REFUGE, 1 200 fundus photographs, a challenge of MICCAI 2018 (Orlando et al.)",
        terms="after registration, under the terms shown there",
        page="https://refuge.grand-challenge.org",
        makes=("retina/refuge",),
        by_hand=(
            "register for the challenge and download its training (400) and test images; the training folders name "
            f"the diagnosis; {RETINA_LAYOUT}"
        ),
    ),
)

GROUPS = {"digits": DIGITS, "cifar10c": CIFAR[1:], "retina": RETINA}
SOURCES = {source.name: source for source in (*DIGITS, *CIFAR, *RETINA)}
OPTIONAL = ("synth_ganin", "synth_folder")  # the suite renders a stand-in where they are missing
