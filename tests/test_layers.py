"""The layers of the packages: a file imports only from files above it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = [
    "loader.digest",
    "loader.stats",
    "loader.whole_file",
    "loader.state_tree",
    "loader.module",
    "loader.structural",
    "loader.spec",
    "loader.permutation",
    "loader.kept_memory",
    "loader.rows",
    "loader.grain_shuffle",
    "loader.packing",
    "loader.packed_rows",
    "loader.mixing",
    "loader.sources",
    "loader.order",
    "loader.plan",
    "loader.batchers",
    "loader.draws",
    "loader.transform",
    "loader.callables",
    "loader.stages",
    "loader.operator",
    "loader.mapped_source",
    "loader.partition.axes",
    "loader.partition.mesh",
    "loader.partition.hashing",
    "loader.partition.correction",
    "loader.partition.applying",
    "loader.partition.rules",
    "loader.partition.inspection",
    "loader.partition.constraints",
    "loader.partition.partition_axis",
    "loader.partition.manager",
    "loader.partition",
    "loader.leaf_placement",
    "loader.placement",
    "loader.sharder",
    "loader.pace",
    "loader.prefetch",
    "loader.device_prefetcher",
    "loader.host_work",
    "loader.read_ahead",
    "loader.workers",
    "loader.device_operators",
    "loader.placed_stream",
    "loader.stage_checks",
    "loader.processes",
    "loader.fingerprint",
    "loader.checkpoint",
    "loader.data_loader",
    "loader.testing",
    "loader.command.problems",
    "loader.command.toml_lines",
    "loader.command.calls",
    "loader.command.kinds",
    "loader.command.settings",
    "loader.command.meshes",
    "loader.command.config",
    "loader.command.state_files",
    "loader.command.states",
    "loader.command.peek",
    "loader.command.bench",
    "loader.command.tasks",
    "loader.command.progress",
    "loader.command.run_folder",
    "loader.command.train",
    "loader.command.check",
    "loader.command",
    "operators",
    "loader.cli",
    "loader",
]


def layer_of(module: str) -> int:
    matches = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    assert matches, f"{module} is in no layer: give it a place in {__file__}"
    return LAYERS.index(max(matches, key=len))


def test_each_file_imports_only_from_layers_above_it():
    for path in [*ROOT.glob("loader/**/*.py"), *ROOT.glob("operators/**/*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name.split(".")[0] in ("loader", "operators"):
                    own = layer_of(module)
                    assert layer_of(name) <= own, f"{module} imports {name}, which lies below it"
                    assert name != "loader", f"{module} imports the whole package"
