"""Weights of a mixture that are changed at a restart: every component goes on in its epoch."""

import io
import itertools
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loader import DataLoader, Mixture, Shuffle
from loader.command.state import diff_states, needed_changes, show_diff, state_in_words
from loader.records.digest import content_key
from loader.state.document import check_document, make_document
from loader.testing import assert_resumes_exactly, assert_same_batch
from tests.data import unlike_records
from tests.processes import run_processes

SIZES = {"books": 31, "code": 12, "web": 70}
FIRST = {"books": 1, "code": 1, "web": 2}
SECOND = {"books": 5, "code": 0.5, "web": 1}
THIRD = {"books": 1, "code": 1, "web": 7}
ALLOWED = {"data.shares"}


def part(name: str) -> dict[str, np.ndarray]:
    """Records of which each says what it is."""
    records = unlike_records(SIZES[name])
    return {**records, "id": records["id"] + 1000 * list(SIZES).index(name)}


def make(weights: Mapping[str, float] = FIRST, batch_size: int = 9, **settings: Any) -> DataLoader:
    components = {name: (part(name), weight) for name, weight in weights.items()}
    length = settings.pop("length", None)
    settings = {"epochs": 4, "remainder": "carry", **settings}
    return DataLoader(Mixture(components, 3, length=length), batch_size=batch_size, **settings)


def after(loader: DataLoader, steps: int) -> tuple[list[int], dict[str, Any]]:
    """The ids of so many further batches, and the state then, by way of JSON."""
    batches = itertools.islice(loader.host_batches(), steps)
    ids = [int(id) for batch in batches for id in batch["id"][batch["valid_mask"]]]
    return ids, json.loads(json.dumps(loader.get_state()))


def resumed(state: dict[str, Any], *arguments: Any, **settings: Any) -> DataLoader:
    loader = make(*arguments, **settings)
    loader.set_state(state, allow_changes=ALLOWED)
    return loader


def in_epochs(ids: list[int]) -> Iterator[tuple[str, list[int]]]:
    """The epochs of each component, of which the last may be begun only."""
    for number, (name, size) in enumerate(SIZES.items()):
        own = [id % 1000 for id in ids if id // 1000 == number]
        for start in range(0, len(own), size):
            yield name, own[start : start + size]


def assert_nothing_repeated_or_skipped(ids: list[int]) -> None:
    epochs = list(in_epochs(ids))
    for name, epoch in epochs:
        assert len(set(epoch)) == len(epoch), f"{name}: a record came twice in an epoch"
    assert len(epochs) > len(SIZES), "there was no second epoch"


@pytest.mark.parametrize("steps", [0, 1, 7, 13, 30])
def test_each_component_goes_on_in_its_epoch_under_other_weights(steps: int):
    seen, state = after(make(), steps)
    more, state = after(resumed(state, SECOND), 9)
    assert_nothing_repeated_or_skipped(seen + more + after(resumed(state, SECOND), 11)[0])
    # And in the order in which it would have gone on under the old ones.
    plain, _ = after(make(), 50)
    for number in range(len(SIZES)):
        ours, theirs = ([id for id in ids if id // 1000 == number] for ids in (seen + more, plain))
        together = min(len(ours), len(theirs))
        assert ours[:together] == theirs[:together]


def test_the_new_weights_hold_from_the_change_on():
    _, state = after(make(epochs=None), 20)
    ids, _ = after(resumed(state, SECOND, epochs=None), 112)
    shares = np.bincount(np.array(ids[:1000]) // 1000) / 1000
    np.testing.assert_allclose(shares, np.array(list(SECOND.values())) / 6.5, atol=0.0015)


def test_weights_may_change_again_and_back_and_with_the_batch_size():
    ids, state = after(make(), 8)
    for weights, batch_size in ((SECOND, 9), (THIRD, 5), (THIRD, 4), (FIRST, 4), (FIRST, 9)):
        more, state = after(resumed(state, weights, batch_size), 12)
        ids += more
        assert_nothing_repeated_or_skipped(ids)


def test_a_run_with_changed_weights_resumes_exactly_and_from_its_steps():
    _, state = after(make(), 8)
    _, state = after(resumed(state, SECOND), 5)

    def again() -> DataLoader:
        loader = make(SECOND, epochs=2)
        loader.set_state(state)  # the weights are those of the state: nothing to allow
        return loader

    assert again().get_state() == state
    expected = list(again().host_batches())
    for step, batch in enumerate(expected, start=13):
        loader = again()
        assert_same_batch(loader.host_batch_at(step), batch, f"batch {step}")
        loader.seek(step)
        other = make(SECOND, epochs=2)
        other.set_state(loader.get_state())
        assert other.get_state() == loader.get_state()
        assert_same_batch(next(other.host_batches()), batch, f"batch {step} again")
        for copy in (loader.clone(), loader.copy()):
            assert_same_batch(next(copy.host_batches()), batch, f"batch {step} of a copy")
    early = again()
    with pytest.raises(ValueError, match=r"step 7 lies before step 8.*weights of a mixture"):
        early.seek(7)
    assert_same_batch(early.host_batch_at(8), early.to_grain()[8], "the first after the change")


def test_a_run_that_starts_again_has_forgotten_the_change():
    _, state = after(make(), 8)
    loader = resumed(state, SECOND, epochs=1)
    fresh = list(make(SECOND, epochs=1).host_batches())
    statistics = list(loader.pipeline.epoch())
    assert sum(map(len, (batch["id"] for batch in statistics))) == sum(SIZES.values())
    list(loader.host_batches())
    for step, batch in enumerate(loader.host_batches()):  # the second time, from the start
        assert_same_batch(batch, fresh[step], f"batch {step}")
    assert "positions" not in loader.get_state()["mixture"]
    assert_resumes_exactly(lambda: make(SECOND, epochs=1))


def test_a_mixture_that_two_loaders_share_is_not_changed_by_one_of_them():
    _, state = after(make(), 8)
    components = {name: (part(name), weight) for name, weight in SECOND.items()}
    source = Mixture(components, 3)
    loaders = [DataLoader(source, batch_size=9, epochs=4, remainder="carry") for _ in range(2)]
    loaders[0].set_state(state, allow_changes=ALLOWED)
    assert after(loaders[1], 5)[0] == after(make(SECOND), 5)[0]


def test_the_difference_is_shown_as_weights_by_name():
    _, state = after(make(), 3)
    loader = make({"books": 1, "code": 2, "web": 5})
    with pytest.raises(ValueError, match=r"data\.shares") as refusal:
        loader.set_state(state)
    message = str(refusal.value)
    assert (
        "  data.shares: saved weights books 25%, code 25%, web 50%; here books 12.5%, code 25%, "
        "web 62.5%\n" in message
    )
    assert "set_state(state, allow_changes={'data.shares'})" in message
    assert loader.step == 0


def test_components_that_are_new_begin_at_their_start_and_the_others_go_on():
    two = {"books": 1, "web": 2}
    seen, state = after(make(two), 7)
    loader = make()
    with pytest.raises(
        ValueError, match=r"data\.components: saved.*\n(.*\n)*.*data\.shares: saved"
    ):
        loader.set_state(state)
    loader.set_state(state, allow_changes={"data"})
    more, state = after(loader, 14)
    assert_nothing_repeated_or_skipped(seen + more)
    one = make(two)  # and one may go
    one.set_state(state, allow_changes={"data"})
    assert_nothing_repeated_or_skipped(seen + more + after(one, 15)[0])


def test_weights_are_not_changed_inside_an_epoch_that_an_order_has_shuffled():
    settings: dict[str, Any] = {"order": Shuffle(1), "batch_size": 10, "length": 40}
    inside = after(make(**settings), 3)[1]
    loader = make(SECOND, **settings)
    with pytest.raises(
        ValueError, match=r"position 30, inside an epoch of 40 that the order.*end of"
    ):
        loader.set_state(inside, allow_changes=ALLOWED)
    assert loader.step == 0
    in_order = make(SECOND, **{**settings, "order": None})  # the order of then counts, not of now
    with pytest.raises(ValueError, match="what is left of each is not known"):
        in_order.set_state(inside, allow_changes={*ALLOWED, "order", "order.seed"})
    seen, state = after(make(**settings), 4)
    more, state = after(resumed(state, SECOND, **settings), 6)
    assert sorted(seen) == sorted(after(make(batch_size=40), 1)[0])
    again = make(SECOND, **{**settings, "batch_size": 5})  # in the middle of its epoch
    again.set_state(state)
    ids = seen + more + after(again, 4)[0]
    for number, size in enumerate(SIZES.values()):  # epochs of the mixture are shuffled
        own = [id for id in ids if id // 1000 == number]
        assert max(own.count(id) for id in own) <= -(-len(own) // size)


def test_a_state_of_an_earlier_release_is_read_and_its_weights_are_not_changed():
    _, state = after(make(), 4)
    body = {k: v for k, v in state.items() if k not in ("version", "checksum", "mixture")}
    before = make_document(**body)
    loader = make()
    loader.set_state(before)
    assert loader.get_state() == state
    other = make(SECOND)
    with pytest.raises(ValueError, match=r"data\.shares: saved digest"):
        other.set_state(before)
    with pytest.raises(
        ValueError, match=r"an earlier release wrote it\. Restore it with the weights"
    ):
        other.set_state(before, allow_changes=ALLOWED)
    assert other.step == 0


def test_a_state_of_other_data_has_no_components_to_go_on_with():
    plain = DataLoader(part("web"), batch_size=9)
    next(plain.host_batches())
    loader = make()
    loader.set_state(plain.get_state(), allow_changes={"data"})
    assert_same_batch(next(loader.host_batches()), make().host_batch_at(1), "the second batch")
    plain.set_state(make().get_state(), allow_changes={"data"})


def test_the_document_stays_small_and_says_what_it_must():
    _, state = after(make(), 4)
    assert state["mixture"] == {"shares": {"books": 256000, "code": 256000, "web": 512000}}
    _, changed = after(resumed(state, SECOND), 2)
    assert list(changed["mixture"]) == ["shares", "positions"]
    assert sum(changed["mixture"]["positions"].values()) == changed["position"] == 54
    assert len(json.dumps(changed)) < 700
    assert _mutated(changed, "shares", {"books": 1}) == "the positions of mixture are not those"
    assert _mutated(changed, "shares", {**changed["mixture"]["shares"], "web": 0}).startswith(
        "the s"
    )
    assert _mutated(changed, "positions", {"a": -1}).startswith("the positions of mixture")
    assert _mutated(changed, "more", {}).startswith("mixture is dict, expected")


def _mutated(state: dict[str, Any], field: str, value: Any) -> str:
    body = {k: v for k, v in state.items() if k not in ("version", "checksum")}
    document = make_document(**{**body, "mixture": {**state["mixture"], field: value}})
    with pytest.raises(ValueError, match="is damaged") as refusal:
        check_document(document)
    return str(refusal.value).partition("a DataLoader: ")[2][:38]


def test_the_command_shows_weights_and_positions():
    _, first = after(make(), 4)
    _, second = after(resumed(first, SECOND), 2)
    words = dict(state_in_words(second))
    assert words["weights"] == "books 76.923%, code 7.69229%, web 15.3847%"
    count = second["mixture"]["positions"]["books"]
    assert words["component books"] == f"{count}: its next record, counted over its epochs"
    assert words["origin"].startswith("step 4, position 36: resumed there with another batch size")
    shares = next(d for d in diff_states(first, second) if d.field == "data.shares")
    assert (shares.first, shares.second) == ("books 25%, code 25%, web 50%", words["weights"])
    assert needed_changes(first, second) == ["data.shares"]
    console = Console(width=100, file=io.StringIO())
    show_diff(first, second, console)
    assert "allow_changes={'data.shares'}" in console.file.getvalue()  # pyright: ignore
    plain = DataLoader(part("web"), batch_size=9).get_state()
    assert "data.shares" in needed_changes(first, plain)


SCRIPT = """
import json
from pathlib import Path
import numpy as np
from loader.records.digest import content_key
from tests.state.test_mixture_weights import SECOND, resumed
folder = Path(sys.argv[5]).parent
mesh = jax.make_mesh((jax.device_count(),), ("data",))
state = json.loads((folder / "state.json").read_text())
loader = resumed(state, SECOND, 8, mesh=mesh)
batches = [next(loader) for _ in range(6)]
ids = [[int(n) for s in b["id"].addressable_shards for n in np.asarray(s.data)] for b in batches]
report({"ids": ids, "state": loader.get_state()})
"""


def test_all_processes_go_on_alike(tmp_path: Path):
    _, state = after(make(), 8)
    (tmp_path / "state.json").write_text(json.dumps(state))
    alone = resumed(state, SECOND, 8)
    expected = [batch["id"].tolist() for batch in itertools.islice(alone.host_batches(), 6)]
    said = run_processes(SCRIPT, 2, 2, tmp_path)
    assert [[*a, *b] for a, b in zip(*(one["ids"] for one in said), strict=True)] == expected
    assert said[0]["state"] == said[1]["state"] == json.loads(json.dumps(alone.get_state()))


def test_pickled_pipelines_keep_the_positions():
    _, state = after(make(), 8)
    loader = resumed(state, SECOND)
    other = pickle.loads(pickle.dumps(loader.pipeline))
    assert content_key(other.batch(9)) == content_key(loader.host_batch_at(9))
