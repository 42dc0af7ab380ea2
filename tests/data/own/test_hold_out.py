"""Which images are held out: by content, class by class, never on both sides."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.data.own.decode import held_out

images = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), min_size=1, max_size=80)
shares = st.floats(0.01, 0.99)


def _divided(rows, share, seed=0):
    labels = [label for label, _ in rows]
    prints = [str(number).encode() for _, number in rows]
    return held_out(labels, prints, share, seed)


def _one_class_each(rows):
    """Equal images have one label, as in an honest data set."""
    return [("abc"[number % 3], number) for _, number in rows]


@settings(deadline=None, max_examples=200)
@given(images, shares, st.integers(0, 5))
def test_equal_images_are_on_one_side_whatever_they_are_called(rows, share, seed):
    sides = {}
    for (_, number), test in zip(rows, _divided(rows, share, seed), strict=True):
        assert sides.setdefault(number, test) == test


@settings(deadline=None, max_examples=200)
@given(images, shares)
def test_a_class_of_two_images_or_more_is_on_both_sides_and_of_one_on_the_training_side(rows, share):
    rows = _one_class_each(rows)
    tests = _divided(rows, share)
    for label in {label for label, _ in rows}:
        different = len({number for other, number in rows if other == label})
        sides = {test for (other, _), test in zip(rows, tests, strict=True) if other == label}
        assert sides == ({True, False} if different > 1 else {False})


@settings(deadline=None, max_examples=100)
@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=200), shares)
def test_without_copies_the_share_is_met_to_the_image(numbers, share):
    tests = _divided([("a", number) for number in numbers], share)
    assert sum(tests) == min(max(1, round(share * len(numbers))), len(numbers) - 1)


@settings(deadline=None, max_examples=100)
@given(images, shares, st.randoms())
def test_names_and_order_of_files_do_not_matter(rows, share, random):
    rows = _one_class_each(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    tested = {row for row, test in zip(rows, _divided(rows, share), strict=True) if test}
    assert tested == {row for row, test in zip(shuffled, _divided(shuffled, share), strict=True) if test}


@settings(deadline=None, max_examples=100)
@given(images, shares)
def test_copies_never_make_the_test_part_exceed_its_share_if_it_can_be_helped(rows, share):
    rows = _one_class_each(rows)
    tests = _divided(rows, share)
    for label in {label for label, _ in rows}:
        mine = [number for other, number in rows if other == label]
        held = [n for (other, n), test in zip(rows, tests, strict=True) if other == label and test]
        fewest = min(Counter(mine).values())
        assert len(held) <= max(1, round(share * len(mine)), fewest)


def test_another_seed_holds_out_other_images():
    rows = [("a", number) for number in range(100)]
    chosen = [_divided(rows, 0.2, seed) for seed in range(3)]
    assert chosen[0] != chosen[1] != chosen[2]
    assert [sum(tests) for tests in chosen] == [20, 20, 20]
    assert _divided(rows, 0.2, 0) == chosen[0]
