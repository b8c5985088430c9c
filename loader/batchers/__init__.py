"""How rows become batches of one static shape.

It imports from `records/` and `modules/`.
"""

from loader.batchers.batcher import BatcherModule as BatcherModule
from loader.batchers.default_batcher import DefaultBatcher as DefaultBatcher
from loader.batchers.pad_batcher import PadBatcher as PadBatcher
