"""What `train.py` learns with: a small model for each task of [train], and how to measure it.

`model_of(task, spec, rngs)` is given the spec of a batch. `measure(task, model, batch)` gives a
`loss` and other figures for every row or token, and `weights`: 0 where it is padding. What is
learned, and what is reported, is their weighted mean. A task of your own has them as its methods
`model(spec, rngs)` and `measure(model, batch)`. The models are small on purpose: to see data at
work, not to set records.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from loader.records.spec import VALID_MASK


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


def model_of(task: Any, spec: Any, rngs: nnx.Rngs) -> nnx.Module:
    """A new model for batches of this spec."""
    if not isinstance(task, dict):
        return task.model(spec, rngs)
    names = ("input", "label", "target", "tokens", "targets", "mask")  # of leaves
    shapes = {name: _leaf(spec, task[name]).shape[1:] for name in names if name in task}
    if task["kind"] == "NextToken":
        sizes = (task["width"], task["depth"], task["heads"])
        return LanguageModel(task["vocabulary"], shapes["tokens"][-1], *sizes, rngs)
    if task["kind"] == "Classify" and len(shapes["input"]) == 3:
        return Convolutions(shapes["input"], task["width"], task["classes"], rngs)
    outputs = task["classes"] if task["kind"] == "Classify" else math.prod(shapes["target"])
    return Mlp(math.prod(shapes["input"]), task["width"], 2, outputs, rngs)


def measure(task: Any, model: Any, batch: Any) -> dict[str, jax.Array]:
    """What the model gives for a batch, row by row or token by token."""
    if not isinstance(task, dict):
        return task.measure(model, batch)
    valid = batch[VALID_MASK].astype(jnp.float32)
    if task["kind"] == "Regress":
        target = batch[task["target"]].reshape(len(valid), -1).astype(jnp.float32)
        error = ((model(batch[task["input"]]) - target) ** 2).mean(-1)
        return {"loss": error, "weights": valid}
    if task["kind"] == "Classify":
        scores, labels, weights = model(batch[task["input"]]), batch[task["label"]], valid
    else:
        tokens, labels = batch[task["tokens"]], batch[task["targets"]]
        everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        segments = batch.get("segment_ids", jnp.ones_like(tokens))
        scores = model(tokens, segments, batch.get("positions", everywhere))
        weights = batch[task["mask"]] * valid[:, None]
    return {
        "loss": optax.softmax_cross_entropy_with_integer_labels(scores, labels),
        "accuracy": (scores.argmax(-1) == labels).astype(jnp.float32),
        "weights": weights,
    }


def _leaf(spec: Any, name: str) -> jax.ShapeDtypeStruct:
    if name not in spec:
        raise ValueError(f"the task needs a leaf {name!r}, and a batch has {sorted(spec)}")
    return spec[name]
