"""CutMix: a rectangle of a partner that is there, and labels by the pixels that are left."""

from typing import Any

import numpy as np
import pytest

from loader import DataLoader
from operators import CutMix, MixUp, OneHot, Select

COUNT, SIZE = 23, (7, 11)
PLACES = np.arange(7 * 11, dtype=np.int16).reshape(*SIZE, 1)


def batches(**settings: Any) -> list[Any]:
    """Batches of images of which each pixel says which record and place it is from."""
    images = np.arange(COUNT, dtype=np.int16)[:, None, None, None] * 100 + 1 + PLACES
    data = {"image": images, "label": np.arange(COUNT, dtype=np.int32), "id": np.arange(COUNT)}
    arguments = {"num_classes": COUNT, "seed": 0, **settings.pop("operator", {})}
    operators = [*settings.pop("before", []), CutMix(**arguments)]
    settings = {"batch_size": 8, "epochs": 6, "operators": operators, **settings}
    return list(DataLoader(data, **settings))


def test_a_rectangle_comes_from_a_partner_and_labels_are_the_shares_of_pixels():
    shares = []
    for batch in batches():
        valid = np.asarray(batch["valid_mask"])
        images, labels = (np.asarray(batch[name]) for name in ("image", "label"))
        assert (images.dtype, labels.dtype) == (np.int16, np.float32)
        assert not images[~valid].any()
        assert not labels[~valid].any()
        owners, places = np.divmod(images[valid] - 1, 100)
        assert (places == PLACES).all()  # every pixel is from its place
        partners = []
        for own, owner, label in zip(
            np.asarray(batch["id"])[valid], owners[..., 0], labels[valid], strict=True
        ):
            counts = np.bincount(owner.ravel(), minlength=COUNT)
            np.testing.assert_allclose(label, counts / owner.size, atol=1e-7)
            assert counts[own] + counts.max(where=np.arange(COUNT) != own, initial=0) == 77
            rows, columns = (np.flatnonzero((owner != own).any(axis)) for axis in (1, 0))
            assert (owner != own).sum() == rows.size * columns.size  # a whole rectangle
            shares.append(1 - counts[own] / 77)
            partners += np.unique(owner[owner != own]).tolist()
        # They are of the batch, none is padding, and each is the partner of one.
        assert set(partners) <= set(np.asarray(batch["id"])[valid].tolist())
        assert len(partners) == len(set(partners))
    assert len({round(share * 77) for share in shares}) > 15


def test_areas_and_middles_are_distributed_as_by_the_plain_recipe():
    """A share of Beta(alpha, alpha), around any pixel; what is outside is left out."""
    for alpha in (1.0, 0.3):
        found = []
        for batch in batches(epochs=60, operator={"alpha": alpha}):
            owners = (np.asarray(batch["image"])[..., 0] - 1) // 100
            cut = owners != np.asarray(batch["id"])[:, None, None]
            found.append(cut[np.asarray(batch["valid_mask"])])
        cut = np.concatenate(found)
        rng, plain = np.random.default_rng(0), np.zeros((20_000, *SIZE), bool)
        for image in plain:
            half = 0.5 * np.sqrt(rng.beta(alpha, alpha))
            spans = []
            for length in SIZE:
                middle, reach = rng.integers(length), int(half * length)
                spans.append(slice(max(middle - reach, 0), min(middle + reach, length)))
            image[tuple(spans)] = True
        areas = [each.sum((1, 2)) for each in (cut, plain)]
        for share in (0.25, 0.5, 0.75, 0.9):
            ours, theirs = (np.quantile(each, share) for each in areas)
            assert abs(ours - theirs) <= 3
        np.testing.assert_allclose(cut.mean(0), plain.mean(0), atol=0.06)


def test_labels_may_be_probabilities_and_what_is_not_a_class_is_nan():
    smooth = batches(before=[OneHot("label", COUNT, smoothing=0.1)])
    plain = batches(before=[Select("image", "label", "id")])  # as many operators: the same draws
    for got, want in zip(smooth, plain, strict=True):
        valid = np.asarray(want["valid_mask"])
        labels = 0.9 * np.asarray(want["label"]) + 0.1 / COUNT
        np.testing.assert_allclose(np.asarray(got["label"])[valid], labels[valid], atol=1e-6)
    few = batches(operator={"num_classes": 20}, epochs=1)[-1]
    labels, ids = np.asarray(few["label"]), np.asarray(few["id"])
    assert np.isnan(labels[ids >= 20]).all()


@pytest.mark.parametrize("mixing", [CutMix, MixUp])
def test_a_small_dtype_of_labels_does_not_limit_the_number_of_classes(mixing: Any):
    rows = {"image": np.zeros((3, 2, 2, 1), np.uint8), "label": np.array([3, 4, 250], np.uint8)}
    loader = DataLoader(rows, batch_size=3, operators=[mixing(num_classes=1000, seed=0)])
    labels = np.asarray(next(loader)["label"])
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)
    assert np.isin(np.argwhere(labels)[:, 1], [3, 4, 250]).all()


def test_what_it_cannot_do_is_refused():
    make: Any = CutMix
    for settings, message in (
        ({"num_classes": 0}, "num_classes must be a positive int"),
        ({"num_classes": 3, "alpha": 0}, "alpha must be greater than 0 and finite"),
        ({"num_classes": 3, "on": "host"}, "CutMix runs on device, got on='host'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**settings)
    data = {"image": np.zeros((4, 5, 6, 3), np.uint8), "label": np.zeros((4, 2), np.int32)}
    for operator, message in (
        (CutMix("label", num_classes=3, seed=0), r"'label' is int32\[2\] where an image"),
        (CutMix(num_classes=3, seed=0), r"leaf 'label' is \[2\] where a class number or \[3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            DataLoader(data, batch_size=2, operators=[operator]).batch_spec()
