"""Operators for common jobs: fields, images, texts, and how to combine them.

They import from `loader/records/`, `loader/modules/` and `loader/transforms/`.
"""

from typing import NoReturn

from loader.transforms.operator_module import Filter as Filter
from operators.compose import Choice as Choice
from operators.compose import Sequence as Sequence
from operators.fields import Cast as Cast
from operators.fields import Constant as Constant
from operators.fields import Rename as Rename
from operators.fields import Select as Select
from operators.functions import Map as Map
from operators.functions import MapBatch as MapBatch
from operators.images.crop import CenterCrop as CenterCrop
from operators.images.crop import RandomCrop as RandomCrop
from operators.images.decode import DecodeImage as DecodeImage
from operators.images.flip import RandomFlip as RandomFlip
from operators.images.mixup import MixUp as MixUp
from operators.images.resize import Resize as Resize
from operators.normalize import Normalize as Normalize
from operators.text.lengths import CropTokens as CropTokens
from operators.text.lengths import PadTokens as PadTokens
from operators.text.targets import ShiftTargets as ShiftTargets
from operators.text.tokenize import Tokenize as Tokenize
from operators.text.tokenizers import ByteTokenizer as ByteTokenizer

__all__ = [
    "ByteTokenizer",
    "Cast",
    "CenterCrop",
    "Choice",
    "Constant",
    "CropTokens",
    "DecodeImage",
    "Filter",
    "Map",
    "MapBatch",
    "MixUp",
    "Normalize",
    "PadTokens",
    "RandomCrop",
    "RandomFlip",
    "Rename",
    "Resize",
    "Select",
    "Sequence",
    "ShiftTargets",
    "Tokenize",
]

_NEW_NAMES = {"Crop": "CropTokens", "Pad": "PadTokens"}


def __getattr__(name: str) -> NoReturn:
    if name in _NEW_NAMES:
        # Of an AttributeError, `from operators import` would drop the message.
        raise ImportError(
            f"{name} is now {_NEW_NAMES[name]}: from operators import {_NEW_NAMES[name]}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
