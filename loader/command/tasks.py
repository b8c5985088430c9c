"""What `gristmill train` can learn: a small model for each kind of data, and how to measure it.

A task is a frozen dataclass with `model(spec, rngs)`, given the spec of a batch, and
`measure(model, batch)`, which gives a `loss` and other figures for every row or token, and
`weights`: 0 where it is padding. What is learned, and what is reported, is their weighted mean. The
models are small on purpose: to see data at work, not to set records.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from loader.records.spec import VALID_MASK

Measures = dict[str, jax.Array]


class Task(Protocol):
    """What a task of your own offers."""

    def model(self, spec: Any, rngs: nnx.Rngs) -> nnx.Module: ...

    def measure(self, model: Any, batch: Any) -> Measures: ...


class Mlp(nnx.Module):
    """Layers of one width over all numbers of a record."""

    def __init__(self, inputs: int, width: int, depth: int, outputs: int, rngs: nnx.Rngs) -> None:
        widths = [inputs, *[width] * depth, outputs]
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(len(x), -1).astype(jnp.float32)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Convolutions(nnx.Module):
    """Two convolutions, the second at half the size, and layers on top: for images."""

    def __init__(self, shape: tuple[int, ...], width: int, outputs: int, rngs: nnx.Rngs) -> None:
        height, across, channels = shape
        features = (16, 32)
        self.fine = nnx.Conv(channels, features[0], (3, 3), rngs=rngs)
        self.coarse = nnx.Conv(features[0], features[1], (3, 3), strides=2, rngs=rngs)
        inputs = -(-height // 2) * -(-across // 2) * features[1]
        self.head = Mlp(inputs, width, 1, outputs, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.relu(self.coarse(nnx.relu(self.fine(x.astype(jnp.float32))))))


@dataclasses.dataclass(frozen=True)
class Classify:
    """Which of some classes a record is of; images are seen through convolutions."""

    input: str = "image"
    label: str = "label"
    classes: int = 10
    width: int = 128

    def model(self, spec: Any, rngs: nnx.Rngs) -> nnx.Module:
        _, *shape = _leaf(spec, self.input).shape
        _leaf(spec, self.label)
        if len(shape) == 3:
            return Convolutions(tuple(shape), self.width, self.classes, rngs)
        return Mlp(math.prod(shape), self.width, 2, self.classes, rngs)

    def measure(self, model: Callable[[Any], Any], batch: Any) -> Measures:
        scores, labels = model(batch[self.input]), batch[self.label]
        return {
            "loss": optax.softmax_cross_entropy_with_integer_labels(scores, labels),
            "accuracy": (scores.argmax(-1) == labels).astype(jnp.float32),
            "weights": _valid(batch),
        }


@dataclasses.dataclass(frozen=True)
class Regress:
    """The numbers that belong to a record."""

    input: str = "x"
    target: str = "y"
    width: int = 128

    def model(self, spec: Any, rngs: nnx.Rngs) -> Mlp:
        inputs, outputs = (
            math.prod(_leaf(spec, name).shape[1:]) for name in (self.input, self.target)
        )
        return Mlp(inputs, self.width, 2, outputs, rngs)

    def measure(self, model: Callable[[Any], Any], batch: Any) -> Measures:
        target = batch[self.target].reshape(len(batch[self.target]), -1).astype(jnp.float32)
        error = ((model(batch[self.input]) - target) ** 2).mean(-1)
        return {"loss": error, "weights": _valid(batch)}


class Block(nnx.Module):
    """Attention to what came before in the same record, and a layer on top."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.inner = nnx.Linear(width, 4 * width, rngs=rngs)
        self.outer = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.outer(nnx.gelu(self.inner(self.norms[1](x))))


class LanguageModel(nnx.Module):
    """A small transformer that never looks across the border of two records in a row."""

    def __init__(
        self, vocabulary: int, length: int, width: int, depth: int, heads: int, rngs: nnx.Rngs
    ) -> None:
        self.tokens = nnx.Embed(vocabulary, width, rngs=rngs)
        self.places = nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.scores = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        same = segments[:, :, None] == segments[:, None, :]
        earlier = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        mask = (same & earlier)[:, None]
        # Positions in a record that is split over rows go on beyond the length of a row.
        x = self.tokens(tokens) + self.places(positions % self.places.num_embeddings)
        for block in self.blocks:
            x = block(x, mask)
        return self.scores(self.norm(x))


@dataclasses.dataclass(frozen=True)
class NextToken:
    """The next token of a text; needs `targets` and `loss_mask`, as ShiftTargets makes them."""

    vocabulary: int = 259
    tokens: str = "tokens"
    targets: str = "targets"
    mask: str = "loss_mask"
    width: int = 64
    depth: int = 2
    heads: int = 4

    def model(self, spec: Any, rngs: nnx.Rngs) -> LanguageModel:
        length = _leaf(spec, self.tokens).shape[-1]
        for name in (self.targets, self.mask):
            _leaf(spec, name)
        return LanguageModel(self.vocabulary, length, self.width, self.depth, self.heads, rngs)

    def measure(self, model: Callable[..., Any], batch: Any) -> Measures:
        tokens, targets = batch[self.tokens], batch[self.targets]
        segments = batch.get("segment_ids", jnp.ones_like(tokens))
        everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        scores = model(tokens, segments, batch.get("positions", everywhere))
        return {
            "loss": optax.softmax_cross_entropy_with_integer_labels(scores, targets),
            "accuracy": (scores.argmax(-1) == targets).astype(jnp.float32),
            "weights": batch[self.mask] * _valid(batch)[:, None],
        }


TASKS = {"Classify": Classify, "Regress": Regress, "NextToken": NextToken}


def _valid(batch: Any) -> jax.Array:
    return batch[VALID_MASK].astype(jnp.float32)


def _leaf(spec: Any, name: str) -> jax.ShapeDtypeStruct:
    if name not in spec:
        raise ValueError(f"the task needs a leaf {name!r}, and a batch has {sorted(spec)}")
    return spec[name]
