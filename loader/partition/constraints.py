"""Sharding constraints, rules and mesh introspection, under one name."""

from loader.partition.applying import make_shard_and_gather_fns as make_shard_and_gather_fns
from loader.partition.applying import with_sharding_constraint as with_sharding_constraint
from loader.partition.correction import get_corrected_named_sharding as get_corrected_named_sharding
from loader.partition.inspection import analyze_sharding_strategy as analyze_sharding_strategy
from loader.partition.inspection import extract_sharding_structure as extract_sharding_structure
from loader.partition.inspection import extract_shardings as extract_shardings
from loader.partition.inspection import (
    get_names_from_partition_spec as get_names_from_partition_spec,
)
from loader.partition.inspection import get_partition_spec as get_partition_spec
from loader.partition.inspection import get_shardings_with_structure as get_shardings_with_structure
from loader.partition.mesh import get_axes_size_in_mesh as get_axes_size_in_mesh
from loader.partition.mesh import get_incontext_mesh as get_incontext_mesh
from loader.partition.mesh import get_mesh_axis_names as get_mesh_axis_names
from loader.partition.mesh import get_mesh_axis_size as get_mesh_axis_size
from loader.partition.mesh import get_submesh_device_index as get_submesh_device_index
from loader.partition.mesh import names_in_current_mesh as names_in_current_mesh
from loader.partition.rules import (
    create_pattern_based_partition_spec as create_pattern_based_partition_spec,
)
from loader.partition.rules import match_partition_rules as match_partition_rules
