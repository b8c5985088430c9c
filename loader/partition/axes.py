"""The words in which shardings are written before a mesh is known: semantic axes and modes.

A semantic axis names what a dimension means. A `PartitionAxis` says which mesh axes that is, per
runtime mode. The ready-made dynamic axes at the end pair axes with a mode; an integer mode names
the dimension that tells decoding (size 1) from training.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, final


@final
class _NotGiven:
    """The type of `NOT_GIVEN`, which stands for an argument that was left out."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"

    def __reduce__(self) -> str:  # a copy or an unpickled one is the same object
        return "NOT_GIVEN"


NOT_GIVEN: Final[Any] = _NotGiven()

AxisType = tuple[str, ...] | list[Any] | str | None
"""Mesh axes for one dimension: a name, several, or None for not sharded."""

EMPTY = "_"
BATCH = "__BATCH__"
LENGTH = "__LENGTH__"
QUERY_LENGTH = "__QUERY_LENGTH__"
KV_LENGTH = "__KV_LENGTH__"
EMBED = "__EMBED__"
HEAD = "__HEAD__"
KV_HEAD = "__KV_HEAD__"
HEAD_DIM = "__HEAD_DIM__"
KV_HEAD_DIM = "__KV_HEAD_DIM__"
MLP_INTERMEDIATE = "__MLP_INTERMEDIATE__"
VOCAB = "__VOCAB__"
EXPERT = "__EXPERT__"
EXPERT_GATE = "__EXPERT_GATE__"
BIAS_HEAD_SEQ = "__BIAS_HEAD_SEQ__"
BIAS_KV_SEQ = "__BIAS_KV_SEQ__"

DATA_PARALLEL = DP = "__DATA_PARALLEL__"
FULLY_SHARDED_DATA_PARALLEL = FSDP = "__FULLY_SHARDED_DATA_PARALLEL__"
TENSOR_PARALLEL = TP = "__TENSOR_PARALLEL__"
EXPERT_PARALLEL = EP = "__EXPERT_PARALLEL__"
SEQUENCE_PARALLEL = SP = "__SEQUENCE_PARALLEL__"

MODE_TRAIN = "__train__"
MODE_PREFILL = "__prefill__"
MODE_DECODE = "__autoregressive__"
MODE_INSERT = "__insert__"

RUNTIME_MODE_TYPES = Literal["__train__", "__prefill__", "__autoregressive__", "__insert__"]
RUNTIME_MODES: Final = frozenset({MODE_TRAIN, MODE_PREFILL, MODE_DECODE, MODE_INSERT})
GENERATION_MODES: Final = frozenset({MODE_DECODE, MODE_INSERT})


class DynamicShardingAxes(NamedTuple):
    """Axes together with the mode, or with the dimension that tells the mode."""

    axes: Sequence[Any]
    mode: str | int


def _train(*axes: Any) -> DynamicShardingAxes:
    return DynamicShardingAxes(list(axes), MODE_TRAIN)


def _by_length(*axes: Any) -> DynamicShardingAxes:
    """Decoding where dimension 1, the length, is 1."""
    return DynamicShardingAxes(list(axes), 1)


# Activations
HiddenStateSharding = _by_length(BATCH, QUERY_LENGTH, EMBED)
AttnQSharding = _by_length(BATCH, QUERY_LENGTH, HEAD, HEAD_DIM)
AttnKVSharding = _by_length(BATCH, KV_LENGTH, KV_HEAD, KV_HEAD_DIM)
ExpertActivations = _train(DP, SP, EP, TP)  # batch, length, expert, hidden
ExpertActivationsAlt = _train(DP, SP, [TP, FSDP])  # batch, length, hidden

# Weights: a matrix by rows or by columns over tensor parallelism, and the vector that goes with it
RowWise = _train(TP, [FSDP, SP])
SRowWise = _train(TP)
ColumnWise = _train([FSDP, SP], TP)
SColumnWise = _train([FSDP, SP])
Replicated = _train(EMPTY)

# Weights of experts: (expert, in, out)
ExpertColumnWise = _train(EP, FSDP, TP)
ExpertRowWise = _train(EP, TP, FSDP)
ExpertColumnWiseAlt = _train(EP, [FSDP, SP], TP)
ExpertRowWiseAlt = _train(EP, TP, [FSDP, SP])
UnifiedExpertColumnWise = _train([FSDP, SP, EP], EMPTY, TP)
UnifiedExpertRowWise = _train([FSDP, SP, EP], TP, EMPTY)
ExpertTensorParallel = _train(TP, EMPTY, EMPTY)
