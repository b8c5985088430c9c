"""How rows become batches of one static shape.

It imports from `records/` and `modules/`.
"""

from loader.batchers.batchers import BatcherModule as BatcherModule
from loader.batchers.batchers import DefaultBatcher as DefaultBatcher
from loader.batchers.batchers import PadBatcher as PadBatcher
