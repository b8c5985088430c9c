"""The model's side: semantic axes, partition rules, corrected shardings, mesh introspection.

It imports from `records/`.
"""

from loader.partition.manager import PartitionAxis as PartitionAxis
from loader.partition.manager import PartitionManager as PartitionManager
from loader.partition.manager import apply_logical_sharding as apply_logical_sharding
