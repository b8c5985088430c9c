"""From a loader to its state document and back, the components of a mixture included.

A mixture says how many of its records each component has given, and that depends on the weights. So
where weights were changed, the document keeps these counts, and each component goes on in its own
epoch: nothing is repeated and nothing skipped. Components are known by their names. One that is
new begins at its start. Of one that is gone, the count is forgotten.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from loader.order.orders import Order, Sequential
from loader.order.plan import Plan
from loader.sources.mixture.mixing import BLOCK, CYCLE
from loader.sources.mixture.mixture import Mixture
from loader.state.document import check_document, make_document
from loader.state.fingerprint import Fingerprint

SHARES, LENGTH = "data.shares", "data.length"  # fields of a mixture's fingerprint


def state_at(step: int, plan: Plan, source: Any, fingerprint: Fingerprint) -> dict[str, Any]:
    """The state document of a loader that is at this step."""
    position = plan.position(step)
    return make_document(
        step=step,
        position=position,
        origin=(plan.origin_step, plan.origin_position),
        batch_size=plan.batch_size,
        remainder=plan.remainder,
        fingerprint=fingerprint.digests,
        mixture=mixture_at(position, source),
    )


def mixture_at(position: int, source: Any) -> dict[str, Any] | None:
    """What a state says of a mixture; None of any other source."""
    if not isinstance(source, Mixture):
        return None
    if not source.has_other_positions:
        return {"shares": source.shares}
    return {"shares": source.shares, "positions": source.own_positions(position)}


def resumed(
    state: dict[str, Any],
    allow_changes: Iterable[str],
    plan: Plan,
    source: Any,
    order: Order,
    fingerprint: Fingerprint,
) -> tuple[Plan, Any]:
    """The plan and the source that go on from a state. `ValueError` if it is refused."""
    check_document(state)
    saved = state.get("mixture") if isinstance(source, Mixture) else None
    shown = {}
    if saved is not None and saved["shares"] != source.shares:
        words = [in_words(shares) for shares in (saved["shares"], source.shares)]
        shown[SHARES] = "saved weights {}; here {}".format(*words)
    fingerprint.refuse_differences(state["fingerprint"], allow_changes, shown)
    if not isinstance(source, Mixture):
        return plan.resumed(state), source
    before, now = state["fingerprint"], fingerprint.digests
    changed = before.get(SHARES, now[SHARES]) != now[SHARES]  # without: it was not a mixture
    if changed:
        same_order = isinstance(order, Sequential) and before.get("order") == now["order"]
        _refuse_unknown_positions(state, plan, same_order, before.get(LENGTH) == now[LENGTH])
    plan = plan.resumed(state, anew=changed)
    if saved is None:
        return plan, source.from_the_start()
    position = state["position"]
    own = saved.get("positions") or source.own_positions(position, saved["shares"])
    return plan, source.going_on(position, own)


def _refuse_unknown_positions(
    state: Mapping[str, Any], plan: Plan, in_sequence: bool, same_length: bool
) -> None:
    """Raise where it cannot be said how many records of each component were given."""
    if "mixture" not in state:
        raise ValueError(
            "the weights of the mixture were changed, and the state does not say what they were: "
            "an earlier release wrote it. Restore it with the weights of then, save it again, and "
            "restore that"
        )
    whole = same_length and state["position"] % plan.num_records == 0
    if not (in_sequence or whole):
        raise ValueError(
            f"the weights of the mixture were changed at position {state['position']}, inside an "
            f"epoch of {plan.num_records} that the order has shuffled, so its components have "
            "given records from all over the epoch, and what is left of each is not known: change "
            "weights at the end of an epoch, or train from the start with the default order, "
            "Sequential(); a mixture is shuffled inside"
        )


def in_words(shares: Mapping[str, int]) -> str:
    """The parts of the components of a mixture, by name."""
    percent = BLOCK * CYCLE / 100
    return ", ".join(f"{name} {share / percent:.6g}%" for name, share in sorted(shares.items()))
