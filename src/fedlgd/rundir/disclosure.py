"""Disclosure of a run: what its method declares to send and read, and what was observed. No torch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fedlgd.rundir.manifest import MethodInfo
from fedlgd.rundir.records import RoundRecord, SentPart

UNDECLARED = "not declared"
UNKNOWN_KIND = "not known to fedlgd: see the method"
DISCLOSES = {
    "weights": "the model after local training: who has it can test whether an image was trained on, and can often "
    "reconstruct images from its change",
    "loss": "how well the model fits the images that it was trained on, as one number",
    "images": "pictures for anyone to look at: they can resemble training images, or copy them",
    "image means": "mean pictures of groups of images, with the share of each class; the mean of few or similar "
    "images nearly shows these images",
    "feature means": "the mean features of each class: of a class with few images nearly those of single images",
    "logits": "what the model says of each image: who has it can test whether an image was trained on",
    "mean logits": "the mean outputs of the model for each class: of a class with few images nearly those of "
    "single ones",
    "soft labels": "the mean probabilities by the model for each class: of a class with few images nearly those of "
    "single ones",
    "prototypes": "the mean features of each class: of a class with few images nearly those of single images",
    "control variates": "the mean gradient of local training: about as much as weights",
    "radius": "how far from the model the images of the site describe its loss, one number; constant with epsilon",
    "work": "the number of training steps, and from it about how many images the site has",
    "statistics": "mean and spread of the pixels",
    "counts": "the number of training images of each class; the weight of an update in the mean is their sum, or 1",
}
"""What a kind of message discloses about the images of a site, in plain words."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that a method did and did not declare, or declared and did not do in the rounds that were observed.

    what: the path that was sent, or the round (1 is the first, 0 the enrolment) in which private images were read.
    """

    code: Literal["sent-undeclared", "read-undeclared", "declared-unsent"]
    what: str


def kind_of(path: str, method: MethodInfo) -> str:
    """The declared kind of what is sent under this path; the longest declared path that contains it counts."""
    return declared_kind(path, method.sends)


def declared_kind(path: str, sends: Mapping[str, str]) -> str:
    """The same by a declaration alone."""
    found = [declared for declared in sends if path == declared or path.startswith(f"{declared}/")]
    return sends[max(found, key=len)] if found else UNDECLARED


def discloses(kind: str) -> str:
    """What someone who sees it learns; of an author's own kinds, and of what is not declared, nothing is known."""
    return DISCLOSES.get(kind, UNKNOWN_KIND)


def observed(records: Iterable[RoundRecord]) -> dict[str, SentPart]:
    """What the messages of the enrolment and of the first rounds had, by path; of several rounds the last."""
    return {path: part for record in records for path, part in record.sent.items()}


def may_read(t: int, method: MethodInfo) -> bool:
    """Whether the method declares that sites read their private images in round t (-1: the enrolment)."""
    if "every" in method.reads:
        return True
    if t < 0:
        return "enrolment" in method.reads
    return "selected" in method.reads and any(t in rounds.until(t + 1) for rounds in method.selected.values())


def differences(method: MethodInfo, records: Iterable[RoundRecord]) -> Iterator[Mismatch]:
    """Where declaration and observation differ. Records of older versions observed nothing."""
    records = list(records)
    sent = observed(records)
    for path in sent:
        if kind_of(path, method) == UNDECLARED:
            yield Mismatch("sent-undeclared", path)
    reads = [record.round + 1 for record in records if record.readers and not may_read(record.round, method)]
    yield from (Mismatch("read-undeclared", str(t)) for t in reads[:1])
    if any(record.sent for record in records if record.round >= 0):
        for path in method.sends:
            if not any(f"{found}/".startswith(f"{path}/") or path.startswith(f"{found}/") for found in sent):
                yield Mismatch("declared-unsent", path)
