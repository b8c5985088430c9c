"""A `DataLoader` as the data pipeline of nanodo. Its batches are arrays of tokens.

In `nanodo/train.py`, in `train_and_evaluate`, the two calls of `data.py_batched_tfds` become

    train_iter = packed_batches(documents(train_texts, c.vocab_path), c.model.L, micro_batch_size,
                                mesh, seed=c.seed, epochs=c.train_epochs)
    eval_ds = padded_batches(documents(eval_texts, c.vocab_path), c.model.L, eval_batch_size, mesh)

In `_get_ckpt_manager`, `data=ocp.Checkpointer(LoaderCheckpointHandler())`. In the `in_shardings` of
`Trainer`, and of `Evaluator` in `nanodo/evaluate.py`, `P("data")` for the batch in place of `P()`.

Tried with nanodo at commit 10aefdeed40a63293daf112b91a5538cd24fa3a4 and jax 0.12.0, which refuses
two lines of its `metrics.py`: there, `where=mask` must be `where=mask.astype(bool)`.
"""

from collections.abc import Iterable
from typing import Any

from jax.sharding import Mesh

from loader import DataLoader, DefaultBatcher, Mapped, Packed, Shuffle, index_lengths
from operators import CropTokens, PadTokens, Tokenize


def documents(texts: Any, vocab_path: str) -> Mapped:
    """The records of `texts`, which have a leaf `text`, with `tokens` in its place."""
    return Mapped(texts, [Tokenize(tokenizer=vocab_path, bos=True, eos=True)])


def packed_batches(
    source: Any, context: int, batch_size: int, mesh: Mesh, *, seed: int, epochs: int | None
) -> DataLoader:
    """Rows that are full of tokens, for training: arrays of shape (batch_size, context)."""
    rows = Packed(source, index_lengths(source), row_length=context, long="split", seed=seed)
    return DataLoader(
        rows,
        batch_size=batch_size,
        order=Shuffle(seed),
        epochs=epochs,
        remainder="drop",
        operators=[only_tokens],
        batcher=DefaultBatcher(),  # no mask: the batch is the array itself
        mesh=mesh,
    )


def padded_batches(source: Any, context: int, batch_size: int, mesh: Mesh) -> Iterable[Any]:
    """A document in each row, for evaluation. Each `iter()` begins at the first document."""
    loader = DataLoader(
        source,
        batch_size=batch_size,
        remainder="drop",
        operators=[CropTokens("tokens", context), PadTokens("tokens", context), only_tokens],
        batcher=DefaultBatcher(),
        mesh=mesh,
    )
    return loader.from_start()


def only_tokens(rows: dict[str, Any]) -> Any:
    return rows["tokens"]
