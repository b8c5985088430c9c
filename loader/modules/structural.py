"""Modules that arrange data and learn nothing: batchers and their like.

A `StructuralModule` is deterministic, or says in its config from which random stream it draws.
"""

import dataclasses
from typing import Any

from loader.modules.module import LoaderModule, LoaderModuleConfig
from loader.records.digest import describe_object


@dataclasses.dataclass(frozen=True)
class StructuralConfig(LoaderModuleConfig):
    """Adds to the base config whether the module is random, and the name of its stream."""

    stochastic: bool = False
    stream_name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stochastic and self.stream_name is None:
            raise ValueError(
                "stochastic=True needs the name of a random stream: add stream_name='...'"
            )
        if not self.stochastic and self.stream_name is not None:
            raise ValueError(
                f"stream_name={self.stream_name!r} should not be given without stochastic=True: it "
                "would have no effect; leave it out"
            )


class StructuralModule(LoaderModule):
    """Base of the modules that arrange data. Calling one is calling its `process`."""

    config: StructuralConfig

    def _check_rngs(self) -> None:
        if self.config.stochastic and self.rngs is None:
            raise ValueError(
                f"{type(self).__name__} is stochastic and has no rngs: pass "
                f"rngs=nnx.Rngs({self.config.stream_name}=seed)"
            )

    @property
    def stochastic(self) -> bool:
        return self.config.stochastic

    @property
    def stream_name(self) -> str | None:
        return self.config.stream_name

    def fingerprint(self) -> dict[str, Any]:
        """What of this module decides its results: class, config and public attributes.

        A `version` attribute is among them: change it when you change what the class does.
        """
        fields = {name: item for name, item in vars(self).items() if name not in ("rngs", "name")}
        # A cache decides how fast it is, not what comes out.
        fields["config"] = dataclasses.replace(self.config, cacheable=False)
        return describe_object(self, fields)

    def requires_rng_streams(self) -> list[str] | None:
        return None if self.stream_name is None else [self.stream_name]

    def process(self, elements: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say how to process")

    def __call__(self, elements: Any, *args: Any, **kwargs: Any) -> Any:
        return self.process(elements, *args, **kwargs)
