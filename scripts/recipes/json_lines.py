"""JSON lines, tokenised once, then packed into rows of one length."""

import json
from pathlib import Path

from loader import DataLoader, JSONLinesSource, Mapped, Packed, Shuffle, index_lengths
from operators import ByteTokenizer, ShiftTargets, Tokenize

Path("data").mkdir(exist_ok=True)  # replace this by files of your own
for part in range(2):
    lines = [json.dumps({"text": f"text {part}-{n} " * (1 + n % 7), "id": n}) for n in range(50)]
    Path(f"data/part-{part}.jsonl").write_text("\n".join(lines) + "\n")

texts = JSONLinesSource("data/*.jsonl", ["text"])
source = Mapped(texts, [Tokenize("text", tokenizer=ByteTokenizer(eos=True))])
lengths = index_lengths(source, tokens="tokens.bin")  # tokenises all of it, the first time only
packed = Packed(source, lengths, row_length=129, seed=0, tokens="tokens.bin", long="split")
print(f"{len(texts)} texts in {len(packed)} rows, {packed.fraction_real:.1%} of them tokens")

loader = DataLoader(packed, batch_size=8, order=Shuffle(seed=0), operators=[ShiftTargets()])
real = 0
with loader:
    for batch in loader:  # tokens, targets, loss_mask, segment_ids and positions
        real += int((batch["segment_ids"] > 0).sum())
print({name: leaf.shape for name, leaf in batch.items()})
assert batch["tokens"].shape == batch["targets"].shape == (8, 128)
assert real > 0.8 * lengths.sum()
