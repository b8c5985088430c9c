"""Which leaf of a batch goes where on a mesh.

A rule is a regular expression on the name of a leaf and a `PartitionSpec` or logical axes; the
first rule that is found in the name counts. The mask takes a rule that matches its whole name, else
it follows the rows of the leaves. Under `microbatches=m` a rule called "microbatches" is for the
axis of microbatches, in front of all leaves; other rules begin at the rows. Nothing is corrected:
what does not fit is refused by name. Logical axes become mesh axes through `logical_rules`, which
are pairs of names or a `PartitionAxis`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from loader.partition import PartitionAxis
from loader.partition.applying import apply_spec, closed_spec
from loader.partition.axes import MODE_TRAIN
from loader.partition.correction import as_entry, refuse_misfit
from loader.partition.mesh import names_of
from loader.records.narrowing import device_dtype, survives
from loader.records.showing import call, mesh_in_words
from loader.records.spec import VALID_MASK, Spec, is_text, leaf_name, named_leaves, spec_of
from loader.sharding.placement import BatchPlacement, rows_shape
from loader.sharding.sharder_module import (
    LogicalAxisSpec,
    SharderModule,
    SharderModuleConfig,
    ShardingRules,
)

LeafRule = tuple[str, PartitionSpec | tuple[Any, ...]]

#: The rule for the axis of microbatches, unless a leaf is called so.
MICROBATCHES = "microbatches"

#: Mesh axes over which the rows of a batch are split when no rule says otherwise.
DATA_AXES = ("data", "fsdp", "dp", "batch")


class RowsDoNotDivide(ValueError):
    """The rows of a batch do not divide over the devices."""


class MeshSharder(SharderModule):
    """Places batches on a mesh, leaf by leaf.

    Without `rules` the rows of every leaf are split over those of `DATA_AXES` that the mesh has.
    `logical_rules` turn logical axes into mesh axes: a list of pairs, or a `PartitionAxis`.
    """

    def __init__(
        self,
        mesh: Mesh,
        rules: Sequence[LeafRule] | Mapping[str, Any] | None = None,
        logical_rules: ShardingRules | PartitionAxis | None = None,
        config: SharderModuleConfig | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(mesh, Mesh):
            raise TypeError(f"MeshSharder needs a jax.sharding.Mesh, got {type(mesh).__name__}")
        config = config or SharderModuleConfig()
        self.partition_axis = None
        if isinstance(logical_rules, PartitionAxis):
            self.partition_axis = logical_rules
        elif logical_rules is not None:
            config = dataclasses.replace(config, sharding_rules=list(logical_rules))
        super().__init__(config, rngs=rngs, name=name)
        self.mesh = mesh
        pairs = rules.items() if isinstance(rules, Mapping) else rules
        self.rules = None if pairs is None else tuple((str(regex), spec) for regex, spec in pairs)
        self._check_rules()

    def __repr__(self) -> str:
        rules = [] if self.rules is None else [f"rules={list(self.rules)}"]
        return call(type(self).__name__, [f"mesh {mesh_in_words(self.mesh)}", *rules])

    def get_partition_spec(self, logical_spec: LogicalAxisSpec | PartitionSpec) -> PartitionSpec:
        if self.partition_axis is not None and not isinstance(logical_spec, PartitionSpec):
            return self.partition_axis.resolve_spec(logical_spec, MODE_TRAIN)
        return super().get_partition_spec(logical_spec)

    def shard(self, batch: Any, sharding: Sharding) -> Any:
        """The batch placed by this sharding: numpy and jax arrays, whatever their rank."""

        def place(path: Any, leaf: Any) -> jax.Array:
            if isinstance(leaf, np.ndarray | np.generic):
                dtype = device_dtype(leaf.dtype)
                small = leaf if dtype is None else leaf.astype(dtype)
                if not survives(leaf, small):
                    raise ValueError(
                        f"leaf {leaf_name(path)!r} holds a value too large for {dtype}"
                    )
                leaf = small
            if not isinstance(sharding, NamedSharding):
                return jax.device_put(leaf, sharding)
            spec = PartitionSpec(*sharding.spec[: np.ndim(leaf)])
            refuse_misfit(np.shape(leaf), spec, sharding.mesh)
            return apply_spec(leaf, sharding.mesh, spec, sharding.memory_kind)

        placed = jax.tree_util.tree_map_with_path(place, batch)
        self.count(applied=max(_row_counts(batch), default=1))
        return placed

    def check_batch_size(self, batch_size: int, microbatches: int | None) -> None:
        """Raise `ValueError` if rows do not divide over the data axes, where they go over those."""
        if self.rules is None:
            self._refuse_rows(batch_size, microbatches, [self._data_entry()])

    def _refuse_rows(self, batch_size: int, microbatches: int | None, entries: list[Any]) -> None:
        """Raise `ValueError`, with sizes that would do, if rows do not divide over any entry."""
        counts = [math.prod(self.mesh.shape[name] for name in names_of(e)) for e in entries]
        each = math.lcm(*counts) * (microbatches or 1)
        for entry, shards in zip(entries, counts, strict=True):
            if batch_size // (microbatches or 1) % shards:
                below = batch_size // each * each
                sizes = f"{below} or {below + each}" if below else str(each)
                parts = f" in {microbatches} microbatches" if microbatches else ""
                raise RowsDoNotDivide(
                    f"batch_size {batch_size}{parts} does not divide over the {shards} shards of "
                    f"mesh axes {names_of(entry)}: use {sizes}, or MeshSharder(mesh, "
                    "rules=[('.*', P())]) to replicate the batch"
                )

    def shardings(
        self, spec: Spec, batch_size: int | None = None, microbatches: int | None = None
    ) -> Any:
        """The tree of `NamedSharding`s for batches of this spec."""
        leaves = dict(named_leaves(spec))
        rules, over = self._rules_and_microbatch_entry(leaves, microbatches)
        specs = self._specs_by_rules(rules, leaves, microbatches)
        if batch_size is not None:
            rows = rows_shape(batch_size, microbatches)
            aligned = [name for name, leaf in leaves.items() if leaf.shape[: len(rows)] == rows]
            entries = dict.fromkeys(specs[name][0] for name in aligned if len(specs[name]))
            self._refuse_rows(batch_size, microbatches, list(entries))
        shardings = []
        for name, leaf in leaves.items():
            whole = specs[name] if microbatches is None else PartitionSpec(over, *specs[name])
            try:
                refuse_misfit(leaf.shape, whole, self.mesh)
            except ValueError as error:
                raise ValueError(f"leaf {name!r}: {error}{_of_a_list(name, leaf)}") from error
            shardings.append(NamedSharding(self.mesh, whole))
        return jax.tree.unflatten(jax.tree.structure(spec), shardings)

    def _rules_and_microbatch_entry(
        self, leaves: dict[str, Any], microbatches: int | None
    ) -> tuple[list[tuple[str, PartitionSpec]], Any]:
        """The rules for leaves, and over what the axis of microbatches is split: None for nothing.

        Where there is no such axis, or a leaf of that name, all rules are for leaves.
        """
        rules = self._rules_or_default()
        if microbatches is None or any(_matches(MICROBATCHES, name) for name in leaves):
            return rules, None
        own = [spec for regex, spec in rules if regex == MICROBATCHES]
        if any(entry is not None for spec in own for entry in spec[1:]):
            raise ValueError(
                f"the rule {MICROBATCHES!r} is for one axis, got {own[0]}: other rules say how "
                "rows are split, such as ('.*', P())"
            )
        others = [(regex, spec) for regex, spec in rules if regex != MICROBATCHES]
        return others, _row_entry(own[0]) if own else None

    def _specs_by_rules(
        self,
        rules: list[tuple[str, PartitionSpec]],
        leaves: dict[str, Any],
        microbatches: int | None,
    ) -> dict[str, PartitionSpec]:
        """The spec of each leaf, without the axis of microbatches, as the rules say."""
        specs: dict[str, PartitionSpec] = {}
        for name, leaf in leaves.items():
            found = next((spec for regex, spec in rules if _matches(regex, name)), None)
            if found is not None:
                # Of a rule that is for all leaves, the mask takes as much as it has dimensions.
                rank = len(leaf.shape) - (microbatches is not None)
                general = name == VALID_MASK or self.rules is None
                specs[name] = PartitionSpec(*found[:rank]) if general else found
            elif name != VALID_MASK:
                raise ValueError(
                    f"no rule matches leaf {name!r}: add ({name!r}, P(...)); there are rules for "
                    f"{[regex for regex, _ in rules]}"
                )
        for regex, _ in rules:
            if not any(_matches(regex, name) for name in leaves):
                only = "; it needs DataLoader(..., microbatches=m)" if regex == MICROBATCHES else ""
                raise ValueError(
                    f"the rule {regex!r} matches no leaf: there are {list(leaves)}{only}"
                )
        if VALID_MASK in leaves and VALID_MASK not in specs:
            entries = {name: _row_entry(spec) for name, spec in specs.items()}
            if len(set(entries.values())) > 1:
                raise ValueError(
                    f"leaves split their rows in different ways {entries}, so {VALID_MASK!r} needs "
                    f"a rule of its own: add ({VALID_MASK!r}, P(...))"
                )
            specs[VALID_MASK] = PartitionSpec(*set(entries.values()))
        return specs

    def placement(self, spec: Spec, batch_size: int, microbatches: int | None) -> BatchPlacement:
        shardings = self.shardings(spec, batch_size, microbatches)
        return BatchPlacement(spec, batch_size, microbatches, shardings)

    def rows_here(self, batch_size: int) -> int:
        """How many of the rows of a batch this process gives, where the batch comes in a stream."""
        whole = self._times_here()
        if batch_size % whole:
            raise RowsDoNotDivide(
                f"batch_size {batch_size} does not divide over the {whole} processes that hold "
                f"different rows: use {-(-batch_size // whole) * whole}"
            )
        return batch_size // whole

    def _times_here(self) -> int:
        """How many times the rows of this process a batch of a stream has."""
        counts = {self._processes_along(_row_entry(rule)) for _, rule in self._rules_or_default()}
        if len(counts) != 1:
            raise ValueError(
                "on several processes, all leaves of a stream must split their rows alike"
            )
        return counts.pop()

    def placement_of(self, batch: Any) -> BatchPlacement:
        """Where the leaves of this host batch go; on several processes, it is this one's rows."""
        spec = spec_of(batch)
        if jax.process_count() == 1:
            return self.placement(spec, max(_row_counts(batch), default=1), None)
        rows = _row_counts(batch)
        if len(rows) != 1:
            raise ValueError(
                "on several processes, all leaves of a stream must have as many rows, got "
                f"{sorted(rows)}"
            )
        whole = rows.pop() * self._times_here()
        spec = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((whole, *s.shape[1:]), s.dtype) if s.shape else s, spec
        )
        return self.placement(spec, whole, None)

    def _processes_along(self, entry: Any) -> int:
        """How many times the rows of this process the whole batch has, split over this entry."""
        shards = math.prod(self.mesh.shape[name] for name in names_of(entry))
        sharding = NamedSharding(self.mesh, PartitionSpec(entry))
        held = set(map(str, sharding.addressable_devices_indices_map((shards,)).values()))
        return shards // len(held)

    def _rules_or_default(self) -> list[tuple[str, PartitionSpec]]:
        if self.rules is None:
            return [("", PartitionSpec(self._data_entry()))]
        return [(regex, closed_spec(self.get_partition_spec(spec))) for regex, spec in self.rules]

    def _data_entry(self) -> Any:
        return as_entry([name for name in DATA_AXES if name in self.mesh.axis_names])

    def _check_rules(self) -> None:
        if self.rules is None and self._data_entry() is None:
            raise ValueError(
                f"the mesh has the axes {list(self.mesh.axis_names)} and none of {DATA_AXES}, so "
                "say over which the rows of a batch are split: MeshSharder(mesh, rules=[('.*', "
                f"P({self.mesh.axis_names[0]!r}))]), or P() to replicate them"
            )
        for regex, spec in self.rules or ():
            if not isinstance(spec, PartitionSpec | tuple | list):
                raise TypeError(
                    f"the rule {regex!r} needs a PartitionSpec or a tuple of axes, got {spec!r}"
                )
        for regex, spec in self._rules_or_default():
            try:
                re.compile(regex)
            except re.error as error:
                raise ValueError(
                    f"the rule {regex!r} is no regular expression ({error}): escape special "
                    "characters with a backslash"
                ) from error
            for name in [name for entry in spec for name in names_of(entry)]:
                if name not in self.mesh.axis_names:
                    raise ValueError(
                        f"the rule {regex!r} names the axis {name!r}; the mesh has "
                        f"{list(self.mesh.axis_names)}"
                    )


def _matches(regex: str, name: str) -> bool:
    """Whether a rule is for a leaf. The mask is only for those who name it: `id` is in its name."""
    found = re.fullmatch if name == VALID_MASK else re.search
    return found(regex, name) is not None


def _row_entry(spec: PartitionSpec) -> Any:
    """Over what a spec splits the rows."""
    return spec[0] if len(spec) else None


def _row_counts(batch: Any) -> set[int]:
    return {np.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if np.ndim(leaf)}


def placement_on_default_device(
    spec: Spec, batch_size: int, microbatches: int | None
) -> BatchPlacement:
    """Everything on the default device: for one process only."""
    if jax.process_count() > 1:
        raise ValueError(
            f"this is one of {jax.process_count()} processes, and without a mesh each would keep a "
            "whole batch to itself: pass DataLoader(..., mesh=mesh)"
        )
    return BatchPlacement(spec, batch_size, microbatches)


def _of_a_list(name: str, leaf: Any) -> str:
    """What to do about one of the texts, or images of unknown size, that a batcher has listed."""
    if leaf.shape or not is_text(leaf.dtype):
        return ""
    leaf_of_all = name.rpartition("/")[0]
    return (
        ". It is one of a list of texts, or of arrays that may differ in shape, which no device "
        f"can hold: resize or crop images first, as Resize({leaf_of_all!r}, 224) of operators "
        "does, and make numbers of texts; or give PadBatcher(), for batches on the host"
    )
