"""From semantic axes to mesh axes."""

import dataclasses
import difflib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
from jax.sharding import PartitionSpec

import loader.partition.axes as ax
from loader.partition.axes import GENERATION_MODES, NOT_GIVEN, RUNTIME_MODES, AxisType

# What a field that was not given is taken from, in the order in which they are filled in.
_DERIVED_FROM = {
    "batch_axis": ("fully_sharded_data_parallel_axis", "data_parallel_axis"),
    "sequence_axis": "sequence_parallel_axis",
    "query_sequence_axis": "sequence_parallel_axis",
    "head_axis": "tensor_parallel_axis",
    "kv_head_axis": "tensor_parallel_axis",
    "key_sequence_axis": "sequence_parallel_axis",
    "hidden_state_axis": "tensor_parallel_axis",
    "mlp_intermediate_axis": "tensor_parallel_axis",
    "vocab_axis": "tensor_parallel_axis",
    "expert_axis": "expert_parallel_axis",
    "decode_batch_axis": "batch_axis",
    "decode_head_axis": "head_axis",
    "decode_kv_head_axis": "kv_head_axis",
    "decode_key_sequence_axis": "key_sequence_axis",
}


def hash_fn(self: Any) -> int:
    """A hash of an object's dataclass fields, or of its attributes, whatever they hold."""
    fields = vars(self)
    if dataclasses.is_dataclass(self):
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.compare}
    return hash((type(self).__qualname__, _hashable(fields)))


def _hashable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return hash_fn(value)
    if isinstance(value, Mapping):
        return frozenset((str(key), _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(_hashable(item) for item in value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class PartitionAxis:
    """Which mesh axes each semantic axis is split over.

    The first five fields name the mesh axes of the kinds of parallelism. The others default to
    what follows from them, and `.replace` derives that anew.
    """

    data_parallel_axis: str = "dp"
    fully_sharded_data_parallel_axis: str = "fsdp"
    tensor_parallel_axis: str = "tp"
    sequence_parallel_axis: str = "sp"
    expert_parallel_axis: str = "ep"

    batch_axis: AxisType = NOT_GIVEN
    sequence_axis: AxisType = NOT_GIVEN
    query_sequence_axis: AxisType = NOT_GIVEN
    head_axis: AxisType = NOT_GIVEN
    kv_head_axis: AxisType = NOT_GIVEN
    key_sequence_axis: AxisType = NOT_GIVEN
    hidden_state_axis: AxisType = NOT_GIVEN
    mlp_intermediate_axis: AxisType = NOT_GIVEN
    vocab_axis: AxisType = NOT_GIVEN
    expert_axis: AxisType = NOT_GIVEN
    expert_gate_axis: AxisType = None

    attention_dim_axis: AxisType = None
    attention_kv_dim_axis: AxisType = None
    bias_head_sequence_axis: AxisType = None
    bias_key_sequence_axis: AxisType = None

    decode_batch_axis: AxisType = NOT_GIVEN
    decode_query_sequence_axis: AxisType = None
    decode_head_axis: AxisType = NOT_GIVEN
    decode_kv_head_axis: AxisType = NOT_GIVEN
    decode_key_sequence_axis: AxisType = NOT_GIVEN
    decode_attention_dim_axis: AxisType = None
    decode_attention_kv_dim_axis: AxisType = None

    # The field of each semantic axis, and the field that replaces it while generating.
    _SEMANTIC_MAP: ClassVar[dict[str, str | None]] = {
        ax.BATCH: "batch_axis",
        ax.LENGTH: "sequence_axis",
        ax.QUERY_LENGTH: "query_sequence_axis",
        ax.KV_LENGTH: "key_sequence_axis",
        ax.EMBED: "hidden_state_axis",
        ax.HEAD: "head_axis",
        ax.KV_HEAD: "kv_head_axis",
        ax.MLP_INTERMEDIATE: "mlp_intermediate_axis",
        ax.VOCAB: "vocab_axis",
        ax.EXPERT: "expert_axis",
        ax.EXPERT_GATE: "expert_gate_axis",
        ax.HEAD_DIM: "attention_dim_axis",
        ax.KV_HEAD_DIM: "attention_kv_dim_axis",
        ax.BIAS_HEAD_SEQ: "bias_head_sequence_axis",
        ax.BIAS_KV_SEQ: "bias_key_sequence_axis",
        ax.EMPTY: None,
        ax.DATA_PARALLEL: "data_parallel_axis",
        ax.FULLY_SHARDED_DATA_PARALLEL: "fully_sharded_data_parallel_axis",
        ax.TENSOR_PARALLEL: "tensor_parallel_axis",
        ax.SEQUENCE_PARALLEL: "sequence_parallel_axis",
        ax.EXPERT_PARALLEL: "expert_parallel_axis",
    }
    _STANDARD_TO_GENERATION_ATTR_MAP: ClassVar[dict[str, str]] = {
        "batch_axis": "decode_batch_axis",
        "query_sequence_axis": "decode_query_sequence_axis",
        "key_sequence_axis": "decode_key_sequence_axis",
        "head_axis": "decode_head_axis",
        "kv_head_axis": "decode_kv_head_axis",
        "attention_dim_axis": "decode_attention_dim_axis",
        "attention_kv_dim_axis": "decode_attention_kv_dim_axis",
    }

    _lock: ClassVar[threading.Lock] = threading.Lock()
    # By name: `axis_rule` and `generation_axis_rule`, which may be NOT_GIVEN.
    _registered: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        derived = [name for name in _DERIVED_FROM if getattr(self, name) is NOT_GIVEN]
        for name in derived:
            value = jax.tree.map(lambda field: getattr(self, field), _DERIVED_FROM[name])
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_derived", frozenset(derived))  # no field: not part of equality
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is NOT_GIVEN:
                raise ValueError(f"Partitioning rule `{field.name}` was not resolved.")

    __hash__ = hash_fn

    def replace(self, **changes: Any) -> Self:
        """The same with some fields changed; what was derived is derived from the new ones."""
        kept = {f.name for f in dataclasses.fields(self)} - vars(self)["_derived"]
        return type(self)(**{name: getattr(self, name) for name in kept} | changes)

    # The registry, shared by all instances

    @classmethod
    def register(
        cls,
        semantic_axis: str,
        axis_rule: Any,
        *,
        generation_axis_rule: Any = NOT_GIVEN,
        override: bool = False,
    ) -> None:
        """Give a semantic axis a meaning everywhere in this process.

        A rule is the name of a field of this class, a mesh axis, another semantic axis, a sequence
        of such, or None for "not sharded". Where no rule for generation is given, a field with one
        of its own for decoding brings that along.
        """
        name = _checked_name(semantic_axis)
        with cls._lock:
            if not override and (name in cls._SEMANTIC_MAP or name in cls._registered):
                raise ValueError(
                    f"Semantic axis {name!r} already exists. Use override=True to replace it."
                )
            if generation_axis_rule is NOT_GIVEN and isinstance(axis_rule, str):
                generating = cls._STANDARD_TO_GENERATION_ATTR_MAP
                generation_axis_rule = generating.get(axis_rule, NOT_GIVEN)
            cls._registered[name] = {
                "axis_rule": axis_rule,
                "generation_axis_rule": generation_axis_rule,
            }

    @classmethod
    def unregister(cls, semantic_axis: str, *, missing_ok: bool = True) -> None:
        """Take back a registration."""
        name = _checked_name(semantic_axis)
        with cls._lock:
            if name not in cls._registered and not missing_ok:
                raise KeyError(f"Semantic axis {name!r} is not registered.")
            cls._registered.pop(name, None)

    @classmethod
    def clear_registered_axes(cls) -> None:
        """Take back all registrations."""
        with cls._lock:
            cls._registered.clear()

    @classmethod
    def get_registered_axes(cls) -> dict[str, dict[str, Any]]:
        """A copy of what is registered."""
        with cls._lock:
            return {name: dict(rules) for name, rules in cls._registered.items()}

    # Resolution

    def resolve_axis(self, axes: Sequence[Any], mode: str) -> list[Any]:
        """The mesh axes for each semantic axis: a name, a tuple of names, or None.

        A rule that is a list gives a list.
        """
        if mode not in RUNTIME_MODES:
            raise ValueError(f"unknown mode {mode!r}: there are {sorted(RUNTIME_MODES)}")
        return [self._resolve_entry(entry, mode) for entry in axes]

    def resolve_spec(self, axes: Sequence[Any], mode: str) -> PartitionSpec:
        """The `PartitionSpec` for a sequence of semantic axes."""
        entries = self.resolve_axis(axes, mode)
        return PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entries))

    def _resolve_entry(self, entry: Any, mode: str) -> Any:
        if isinstance(entry, list | tuple):  # joined axes, among them mesh axes by name
            rules = [self._resolve_name(item, mode, known=False) for item in entry]
            return tuple(_flat(rules)) or None
        rule = self._resolve_name(entry, mode, known=True)
        return (type(rule)(_flat(rule)) or None) if isinstance(rule, list | tuple) else rule

    def _resolve_name(self, name: Any, mode: str, known: bool) -> Any:
        if name is None or name == ax.EMPTY:
            return None
        rule = self._rule_for(name, mode)
        if rule is NOT_GIVEN:
            if not known:
                return name
            names = [*self._SEMANTIC_MAP, *self._registered]
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
            hint = f": did you mean {near[0]!r}?" if near else f": there are {names}"
            raise ValueError(f"Unknown semantic axis name: {name!r}{hint}")
        return self._resolve_rule(rule, mode, frozenset({name}))

    def _rule_for(self, name: str, mode: str) -> Any:
        """The rule of a semantic axis, `NOT_GIVEN` if it is none."""
        registered = self._registered.get(name)
        if registered is not None:
            rule, generation = registered["axis_rule"], registered["generation_axis_rule"]
        else:
            rule = self._SEMANTIC_MAP.get(name, NOT_GIVEN)
            field = self._STANDARD_TO_GENERATION_ATTR_MAP.get(str(rule))
            # A decode field of None does not mean "not sharded" but "as in training".
            has_own = field is not None and getattr(self, field) is not None
            generation = field if has_own else NOT_GIVEN
        return generation if mode in GENERATION_MODES and generation is not NOT_GIVEN else rule

    def _resolve_rule(self, rule: Any, mode: str, seen: frozenset[str]) -> Any:
        if isinstance(rule, list | tuple):
            return type(rule)(self._resolve_rule(item, mode, seen) for item in rule)
        if not isinstance(rule, str):
            return rule
        if rule in _FIELDS:
            return getattr(self, rule)
        further = self._rule_for(rule, mode)
        if further is NOT_GIVEN:
            return rule  # a mesh axis
        if rule in seen:
            raise ValueError(f"Cyclic semantic axis registration detected at {rule!r}.")
        return self._resolve_rule(further, mode, seen | {rule})


_FIELDS = frozenset(field.name for field in dataclasses.fields(PartitionAxis))


def _checked_name(semantic_axis: Any) -> str:
    name = str(semantic_axis).strip()
    if not name:
        raise ValueError("`semantic_axis` must be a non-empty string.")
    return name


def _flat(rule: Any) -> list[str]:
    """All mesh axes in a rule, which may be nested."""
    if rule is None:
        return []
    if isinstance(rule, list | tuple):
        return [name for item in rule for name in _flat(item)]
    return [rule]
