"""Operators for common jobs: fields, images, texts, and how to combine them."""

from loader.operator import Filter as Filter
from operators.compose import Choice as Choice
from operators.compose import Sequence as Sequence
from operators.crops import CenterCrop as CenterCrop
from operators.crops import RandomCrop as RandomCrop
from operators.decode import DecodeImage as DecodeImage
from operators.fields import Cast as Cast
from operators.fields import Constant as Constant
from operators.fields import Rename as Rename
from operators.fields import Select as Select
from operators.flip import RandomFlip as RandomFlip
from operators.functions import Map as Map
from operators.functions import MapBatch as MapBatch
from operators.mixup import MixUp as MixUp
from operators.normalize import Normalize as Normalize
from operators.resize import Resize as Resize
from operators.text import Crop as Crop
from operators.text import Pad as Pad
from operators.text import ShiftTargets as ShiftTargets
from operators.tokenize import ByteTokenizer as ByteTokenizer
from operators.tokenize import Tokenize as Tokenize
