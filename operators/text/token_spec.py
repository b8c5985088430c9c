"""What operators on tokens share: the names of leaves beside the tokens, and what a sequence is."""

from loader.records.spec import LeafSpec, Spec
from loader.sources.packing.packed_rows import POSITIONS, SEGMENT_IDS
from operators.leaves import get

LOSS_MASK = "loss_mask"
PER_TOKEN = (SEGMENT_IDS, POSITIONS)  # the leaves that packed rows have beside the tokens


def sequence_spec(spec: Spec, name: str) -> LeafSpec:
    leaf = get(spec, name)
    if not leaf.shape or leaf.dtype == object:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where a sequence is needed: "
            "tokenise texts first"
        )
    return leaf
