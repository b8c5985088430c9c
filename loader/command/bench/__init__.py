"""How fast a loader is, where its time goes, and the one knob to turn next."""

from loader.command.bench.bench import Knobs as Knobs
from loader.command.bench.bench import bench as bench
