"""The ways that are compared do the same: a round of whole batches has the same weights."""

import numpy as np
import torch

from bench import peers


def images(folder, count):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8), np.arange(count) % 10
    np.savez(folder / "images.npz", train_x=x, train_y=y, test_x=x[:20], test_y=y[:20])
    return str(folder / "images.npz")


def test_our_fedavg_has_the_weights_of_the_plain_loop(tmp_path):
    file, ends = images(tmp_path, 2 * peers.IMAGES), []
    task, _ = peers.task_of(file, 2, 2, peers.IMAGES)
    start = {name: value.clone() for name, value in task.start.state_dict().items()}
    ours = peers.fedlgd(task, lambda: ends.append(0))
    plain = peers.plain(task, lambda: ends.append(1))
    assert ends == [0, 0, 0, 1, 1]
    for name, value in plain.items():
        torch.testing.assert_close(
            ours[name], value, rtol=0, atol=1e-2 * float((value - start[name]).abs().max()) + 1e-6
        )
    assert any(not torch.equal(value, start[name]) for name, value in plain.items())


def test_a_package_that_is_missing_is_said(tmp_path):
    row = peers.apart("/usr/bin/false", "fluke", images(tmp_path, 64), 1, 2, 64)
    assert row["way"] == "fluke"
    assert row["failed"]
