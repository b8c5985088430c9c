"""Operators for common jobs: fields, images, texts, and how to combine them.

They import from `loader/records/`, `loader/modules/` and `loader/transforms/`.
"""

from typing import NoReturn

from loader.transforms.operator_module import Filter
from operators.compose import Choice, Sequence
from operators.fields import Cast, Constant, Rename, Select
from operators.functions import Map, MapBatch
from operators.images.affine import RandomAffine
from operators.images.albumentations import Albumentations
from operators.images.augment import RandAugment, TrivialAugment
from operators.images.color_jitter import ColorJitter
from operators.images.crop import CenterCrop, CropImage, RandomCrop
from operators.images.cutmix import CutMix
from operators.images.decode import DecodeImage
from operators.images.erasing import RandomErasing
from operators.images.flip import RandomFlip
from operators.images.gaussian_blur import GaussianBlur
from operators.images.grayscale import Grayscale
from operators.images.mixup import MixUp
from operators.images.pad import PadImage
from operators.images.resize import Resize
from operators.images.resized_crop import RandomResizedCrop
from operators.images.torchvision import Torchvision
from operators.normalize import Normalize
from operators.one_hot import OneHot
from operators.text.chat import ChatTemplate
from operators.text.lengths import CropTokens, PadTokens, TruncateTokens
from operators.text.masking import MaskTokens
from operators.text.span_corruption import SpanCorruption
from operators.text.special_tokens import AddSpecialTokens
from operators.text.targets import ShiftTargets
from operators.text.tokenize import Tokenize
from operators.text.tokenizers import ByteTokenizer

__all__ = [
    "AddSpecialTokens",
    "Albumentations",
    "ByteTokenizer",
    "Cast",
    "CenterCrop",
    "ChatTemplate",
    "Choice",
    "ColorJitter",
    "Constant",
    "CropImage",
    "CropTokens",
    "CutMix",
    "DecodeImage",
    "Filter",
    "GaussianBlur",
    "Grayscale",
    "Map",
    "MapBatch",
    "MaskTokens",
    "MixUp",
    "Normalize",
    "OneHot",
    "PadImage",
    "PadTokens",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomResizedCrop",
    "Rename",
    "Resize",
    "Select",
    "Sequence",
    "ShiftTargets",
    "SpanCorruption",
    "Tokenize",
    "Torchvision",
    "TrivialAugment",
    "TruncateTokens",
]

_NEW_NAMES = {"Crop": "CropTokens", "Pad": "PadTokens"}


def __getattr__(name: str) -> NoReturn:
    if name in _NEW_NAMES:
        # Of an AttributeError, `from operators import` would drop the message.
        raise ImportError(
            f"{name} is now {_NEW_NAMES[name]}: from operators import {_NEW_NAMES[name]}"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
