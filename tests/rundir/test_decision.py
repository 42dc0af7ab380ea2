"""What a site gains by joining, in numbers and in a sentence each."""

import pytest

from fedlgd.core.score import Score
from fedlgd.rundir.decision import Decision, MethodRuns, decide
from fedlgd.rundir.intervals import gap_interval


def score(accuracy: float, images: int = 100, classes: int = 2) -> Score:
    total = [images // classes] * classes
    total[0] += images - sum(total)
    right = round(accuracy * images)
    return Score(accuracy, 1.0, (min(right, total[0]), *(0,) * (classes - 1)), tuple(total))


def arm(method: str, *seeds: dict[str, float | Score], **more: object) -> MethodRuns:
    found = {
        seed: {site: a if isinstance(a, Score) else score(a) for site, a in each.items()}
        for seed, each in enumerate(seeds)
    }
    known = {"label": method, "competes": method not in ("local-only", "pooled"), "bytes": 6e6, "seconds": 150.0}
    return MethodRuns(method=method, scores=found, **known | more)


def decided(alone: list[float], joined: list[float], images: int = 100) -> Decision:
    arms = [arm("local-only", *({"north": score(a, images)} for a in alone))]
    arms.append(arm("fedlgd", *({"north": score(a, images)} for a in joined)))
    found = decide(arms)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("alone", "joined", "images", "kind"),
    [
        ([0.7, 0.7, 0.7], [0.9, 0.91, 0.89], 200, "gains"),
        ([0.9, 0.91, 0.89], [0.7, 0.7, 0.7], 200, "loses"),
        ([0.7, 0.7, 0.7], [0.8, 0.8, 0.8], 20, "too-few-images"),
        ([0.7, 0.7, 0.7], [0.75, 0.95, 0.6], 10_000, "too-few-seeds"),
        ([0.7, 0.7, 0.7], [0.7, 0.7, 0.7], 200, "no-difference"),
        ([0.4, 0.4, 0.4], [0.5, 0.5, 0.5], 10_000, "nothing-learned"),
    ],
)
def test_a_site_gains_loses_or_cannot_be_told_for_a_reason(alone, joined, images, kind):
    (gain,) = decided(alone, joined, images).gains
    assert (gain.kind, gain.images, gain.seeds) == (kind, images, 3)
    assert gain.text.startswith("north ")
    assert (gain.needed is None) == (kind != "too-few-images")


def test_a_sentence_has_the_gain_its_interval_and_the_images_that_are_missing():
    """By hand: 2.8016^2 (0.7 * 0.3 + 0.8 * 0.2) / 0.1^2 = 290.4, to two digits upwards 300."""
    (gain,) = decided([0.7], [0.8], 44).gains
    assert gain.needed == 291
    low, high = gap_interval(0.8, 0.7, 44)
    assert gain.interval == (low, high)
    assert gain.text.endswith(": about 300 would be needed.")
    for part in ("44 test images", "+10.0 points", f"−{-100 * low:.1f} to +{100 * high:.1f}"):
        assert part in gain.text
    (lost,) = decided([0.9], [0.7], 400).gains
    low, high = (100 * end for end in lost.interval)
    assert f"loses 20.0 points ({-high:.1f} to {-low:.1f})" in lost.text


def test_seeds_are_paired_and_from_three_on_their_spread_is_in_the_interval():
    """Equal differences add nothing; two seeds have no spread, and the sentences say so."""
    (equal,) = decided([0.6, 0.7, 0.8], [0.7, 0.8, 0.9]).gains
    assert equal.interval == pytest.approx(gap_interval(0.8, 0.7, 100))
    (unequal,) = decided([0.6, 0.7, 0.8], [0.8, 0.8, 0.8]).gains
    assert unequal.interval[0] < equal.interval[0] - 0.05
    for seeds in (1, 2):
        few = decided([0.6, 0.7][:seeds], [0.8, 0.8][:seeds])
        assert "few-seeds" in dict(few.sentences())
    assert "few-seeds" not in dict(decided([0.7] * 3, [0.8] * 3).sentences())


def test_only_seeds_and_sites_of_both_are_compared_and_the_others_are_named():
    alone = arm("local-only", {"north": 0.7, "west": 0.7}, {"north": 0.7, "west": 0.7})
    empty = Score(0.0, 0.0, (0, 0), (0, 0))
    found = decide([alone, arm("fedlgd", {"north": 0.8, "west": empty}), arm("fedavg", {"north": 0.6})])
    assert [(gain.site, gain.seeds) for gain in found.gains] == [("north", 1)]
    assert (found.seeds, found.unscored) == (1, ("west",))
    assert "no-score" in dict(found.sentences())
    assert [gain.joined for gain in found.others["fedavg"]] == [0.6]


def test_sites_join_by_fedlgd_or_by_the_first_that_competes_and_not_without_an_arm_alone():
    scores = {"north": 0.8}
    alone, pooled, avg, ours = (arm(name, scores) for name in ("local-only", "pooled", "fedavg", "fedlgd+proximal"))
    assert decide([alone, avg, ours, pooled]).joined is ours
    assert decide([alone, pooled, avg]).joined is avg
    for arms in ([avg, ours], [alone, pooled], [alone, alone, ours], [alone, arm("fedlgd")]):
        assert decide(arms) is None


def test_the_title_counts_the_sites_and_the_cost_is_that_of_a_site():
    accuracies = {"a": 0.95, "b": 0.95, "c": 0.5, "d": 0.71}
    alone = arm("local-only", dict.fromkeys(accuracies, 0.7), seconds=60.0)
    found = decide([alone, arm("fedlgd", accuracies, label="FedLGD")])
    assert [gain.kind for gain in found.gains] == ["gains", "gains", "loses", "too-few-images"]
    assert "FedLGD, 2 of 4 sites gain" in found.title
    assert ", 1 loses" in found.title
    assert found.title.endswith(" and 1 cannot be told.")
    assert dict(found.sentences())["cost"].count("1.50 MB") == 1  # of 6 MB at four sites
    assert str(found).splitlines()[0] == found.title
    plain = found.plain()
    assert [each["kind"] for each in plain["sites"]] == ["gains", "gains", "loses", "too-few-images"]
    assert plain["cost"]["joined"] == {"bytes": 6e6, "seconds": 150.0}
