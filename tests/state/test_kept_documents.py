"""Documents of every kind that an earlier release wrote: they restore, whatever has moved since."""

import json
from pathlib import Path
from typing import Any

import grain
import pytest

from loader import DataLoader, PadBatcher, Shuffle, StructuralConfig
from loader.records.digest import content_key
from loader.state.document import make_document
from operators import RandomCrop, RandomFlip, Resize, Sequence
from tests.state.kept_documents import (
    FOLDER,
    KEPT,
    PICTURES,
    STEP,
    grain_dataset,
    images,
    make,
    stream,
)


def kept(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_there_is_a_document_of_every_kind_and_no_other():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(KEPT)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_document_restores_and_the_same_batch_follows(name: str, tmp_path: Path):
    document = kept(name)
    assert len(json.dumps(document["state"])) <= 1024
    loader = KEPT[name].make(tmp_path)
    loader.set_state(document["state"])
    state, kept_state = loader.get_state(), document["state"]
    own = {"fingerprint", "checksum"}  # later releases say more: which of the operators differ
    assert {k: state[k] for k in kept_state if k not in own} == {
        k: v for k, v in kept_state.items() if k not in own
    }
    assert {k: state["fingerprint"][k] for k in kept_state["fingerprint"]} == kept_state[
        "fingerprint"
    ]
    assert content_key(loader.host_batch_at(STEP)) == document["next_batch"]
    next(loader.host_batches())
    assert loader.get_state()["step"] == STEP + 1


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_document_is_refused_where_something_has_changed(name: str, tmp_path: Path):
    other = KEPT[name].other(tmp_path)
    with pytest.raises(ValueError, match=rf"  {KEPT[name].field}: saved"):
        other.set_state(kept(name)["state"])
    assert other.get_state()["step"] == 0


@pytest.mark.parametrize("name", KEPT)
def test_every_field_of_a_kept_document_counts(name: str, tmp_path: Path):
    body = {k: v for k, v in kept(name)["state"].items() if k not in ("version", "checksum")}
    loader = KEPT[name].make(tmp_path)
    for field, digest in body["fingerprint"].items():
        if field.startswith("operators."):  # these only say which of the operators differ
            continue
        changed = {**body["fingerprint"], field: digest[::-1]}
        with pytest.raises(ValueError, match=rf"  {field}: saved digest {digest[::-1]}"):
            loader.set_state(make_document(**{**body, "fingerprint": changed}))


def test_a_document_with_the_pixels_resize_had_before_opencvs_is_refused_with_that_reason():
    document = kept("refused/resize-before-opencv")["state"]
    loader = make(PICTURES, operators=images())
    why = r"  operators: saved .*all that differs: Resize gives the pixels of OpenCV\. The release"
    with pytest.raises(ValueError, match=why):
        loader.set_state(document)
    assert loader.get_state()["step"] == 0
    with pytest.raises(ValueError, match=r"  operators: saved digest \w+, here \w+ \(\[\["):
        make(PICTURES, operators=images(2)).set_state(document)  # something else has changed too
    loader.set_state(document, allow_changes={"operators"})
    assert loader.get_state()["step"] == STEP


def test_the_reason_is_given_within_other_operators_and_only_if_nothing_else_has_changed(
    monkeypatch: pytest.MonkeyPatch,
):
    def bright(rows: Any) -> Any:
        return {**rows, "image": rows["image"] + 1}

    def loader() -> DataLoader:
        inner = Sequence([RandomFlip("image"), Resize("image", 5)], seed=1)
        return make(PICTURES, operators=[bright, inner])

    with monkeypatch.context() as before:
        before.delattr(type(Resize("image", 5).transform), "version")
        document = loader().get_state()
    with pytest.raises(ValueError, match="all that differs: Resize gives the pixels of OpenCV"):
        loader().set_state(document)
    setattr(bright, "version", 2)  # noqa: B010  # a function has no such attribute, says pyright
    with pytest.raises(ValueError, match=r"here \w+ \(operators\[0\] .*, operators\[1\] Sequence"):
        loader().set_state(document)


def test_the_kept_document_of_a_stream_restores_and_the_same_batch_follows():
    with stream() as batches:
        batches.restore(FOLDER / "stream")
        assert batches.get_state() == kept("stream/stream-0-of-1")["state"]
        for number in range(STEP, 8):
            assert next(batches)["id"].tolist() == [
                n * n for n in range(4 * number, 4 * number + 4)
            ]


# Moves


def cropping(source: Any = PICTURES) -> DataLoader:
    return make(source, order=Shuffle(1), operators=[RandomCrop("image", 4, seed=1)])


@pytest.mark.parametrize("moved", [Shuffle, RandomCrop, PadBatcher, StructuralConfig])
def test_a_class_of_ours_may_move_to_another_file(moved: type, monkeypatch: pytest.MonkeyPatch):
    before = cropping().get_state()
    monkeypatch.setattr(moved, "__module__", "operators.elsewhere.entirely")
    assert cropping().get_state() == before


def test_a_private_class_of_ours_may_have_another_name():
    before = cropping().get_state()
    crop = RandomCrop("image", 4, seed=1)
    window = type("_Window", (type(crop.transform),), {"__module__": "operators.elsewhere"})
    crop.transform = window(**vars(crop.transform))
    assert make(PICTURES, order=Shuffle(1), operators=[crop]).get_state() == before


def test_a_class_of_grain_may_move_to_another_private_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    before = make(grain_dataset(tmp_path)).get_state()
    stage = type(grain.MapDataset.range(3).shuffle(seed=1))
    assert stage.__module__.startswith("grain._src")
    monkeypatch.setattr(stage, "__module__", "grain._other.place")
    assert make(grain_dataset(tmp_path)).get_state() == before


def test_a_subclass_of_a_users_is_the_users_own(monkeypatch: pytest.MonkeyPatch):
    class Own(Shuffle):
        pass

    Own.__qualname__ = "Shuffle"
    state = make(order=Own(1)).get_state()
    with pytest.raises(ValueError, match="order: saved"):
        make(order=Shuffle(1)).set_state(state)
    monkeypatch.setattr(Own, "__module__", "theirs")
    with pytest.raises(ValueError, match="order: saved"):
        make(order=Own(1)).set_state(state)


def test_the_version_of_a_users_class_is_part_of_what_it_is(monkeypatch: pytest.MonkeyPatch):
    class Own(Shuffle):
        version = 1

    state = make(order=Own(1)).get_state()
    make(order=Own(1)).set_state(state)
    monkeypatch.setattr(Own, "version", 2)
    with pytest.raises(ValueError, match="order: saved"):
        make(order=Own(1)).set_state(state)


def test_a_loader_has_no_second_fingerprint():
    assert not hasattr(DataLoader, "fingerprint")
