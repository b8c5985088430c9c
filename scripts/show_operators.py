"""Draws a sheet with pictures of what each operator on images does to a photograph.

    python scripts/show_operators.py [FILE]

The photographs are those that scikit-learn ships (`pip install 'gristmill[demo]'`). Random
operators are shown at six positions. Without FILE, the sheet is `build/operators.png`.
"""

import argparse
import dataclasses
import importlib.resources
import textwrap
from pathlib import Path

import numpy as np

from loader import DataLoader, OperatorModule
from operators import (
    CenterCrop,
    ColorJitter,
    CropImage,
    CutMix,
    DecodeImage,
    GaussianBlur,
    Grayscale,
    MixUp,
    PadImage,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    TrivialAugment,
)
from operators.images.sampling import Method

COLUMNS = 6
SIZE = (214, 320)
METHODS: tuple[Method, ...] = ("nearest", "linear", "area", "cubic")
NAMES = ("china.jpg", "flower.jpg")
_PANEL_INCHES, _LINE_INCHES = (2.0, 1.34), 0.28


@dataclasses.dataclass
class Row:
    """Pictures below a title, each with a caption of its own or none."""

    title: str
    pictures: list[np.ndarray]
    captions: list[str]


def photographs() -> np.ndarray:
    """The two photographs, uint8 (2, height, width, 3)."""
    folder = importlib.resources.files("sklearn.datasets.images")
    files = np.array([(folder / name).read_bytes() for name in NAMES], object)
    decoded = DecodeImage(least=SIZE)({"image": files})
    return Resize("image", SIZE, method="area")(decoded)["image"]


def rows_of_sheet() -> list[Row]:
    china, flower = photographs()
    return [
        _settings(
            flower,
            "Resize, and what it was made of",
            {
                "from DecodeImage": None,
                **{
                    f'method="{method}"': Resize("image", (32, 48), method=method)
                    for method in METHODS
                },
            },
        ),
        _settings(
            flower,
            "CenterCrop, CropImage, PadImage",
            {
                "CenterCrop to 160": CenterCrop("image", 160),
                "CropImage from (0, 120)": CropImage("image", 0, 120, 160, 200),
                "PadImage, a value": PadImage("image", (280, 400), value=(200, 120, 40)),
                'where="corner"': PadImage("image", (280, 400), where="corner"),
            },
        ),
        _draws(china, RandomCrop("image", (150, 200), seed=0)),
        _draws(china, RandomResizedCrop("image", (160, 240), seed=0)),
        _draws(china, RandomFlip("image", seed=0)),
        _draws(china, RandomAffine("image", degrees=30, seed=1)),
        _draws(china, RandomAffine("image", shear=25, fill=128, seed=1)),
        _draws(china, RandomAffine("image", translate=(0.2, 0.2), scale=(0.5, 1.5), seed=1)),
        _with_mask(
            flower,
            RandomAffine(("image", "mask"), degrees=90, scale=(0.6, 1.2), fill=200, seed=2),
        ),
        _draws(flower, RandomErasing("image", probability=1, value=(124, 116, 104), seed=0)),
        _draws(flower, RandomErasing("image", probability=0.7, value="random", seed=1)),
        _draws(flower, ColorJitter("image", brightness=0.4, contrast=0.4, saturation=0.4, seed=0)),
        _draws(flower, ColorJitter("image", hue=0.5, seed=0)),
        _draws(flower, Grayscale("image", probability=0.5, seed=0)),
        _draws(china, GaussianBlur("image", sigma=(0.1, 4.0), seed=0)),
        _draws(china, RandAugment("image", seed=0)),
        _draws(china, TrivialAugment("image", seed=0)),
        _mixtures(china, flower, MixUp(num_classes=2, alpha=1.0, seed=0)),
        _mixtures(china, flower, CutMix(num_classes=2, seed=0)),
    ]


def _draws(photo: np.ndarray, operator: OperatorModule) -> Row:
    """The same photograph at several positions."""
    made = operator({"image": np.stack([photo] * COLUMNS)})["image"]
    return Row(repr(operator), list(made), [""] * COLUMNS)


def _settings(photo: np.ndarray, title: str, operators: dict[str, OperatorModule | None]) -> Row:
    """What each of some operators makes of it; None leaves it."""
    rows = {"image": photo[None]}
    pictures = [(rows if each is None else each(rows))["image"][0] for each in operators.values()]
    return Row(title, pictures, list(operators))


def _with_mask(photo: np.ndarray, operator: OperatorModule) -> Row:
    """An image and its mask, by the same draws: the mask in green."""
    red, green, blue = photo.astype(int).transpose(2, 0, 1)
    mask = ((red > green + 40) & (red > blue + 40)).astype(np.uint8)[..., None]
    rows = {"image": np.stack([photo] * COLUMNS), "mask": np.stack([mask] * COLUMNS)}
    made = operator(rows)
    tinted = made["image"] // 2 + np.array([0, 127, 0], np.uint8)
    pictures = np.where(made["mask"] == 1, tinted, made["image"])
    return Row(f"{operator!r}: the mask in green", list(pictures), [""] * COLUMNS)


def _mixtures(first: np.ndarray, second: np.ndarray, operator: OperatorModule) -> Row:
    """Both photographs in turn, mixed with one another, and their labels."""
    photos, labels = np.stack([first, second] * (COLUMNS // 2)), np.arange(COLUMNS) % 2
    data = {"image": photos, "label": labels.astype(np.int32)}
    made = next(DataLoader(data, batch_size=COLUMNS, operators=[operator]))
    captions = [
        f"{share[0]:.2f} china, {share[1]:.2f} flower" for share in np.asarray(made["label"])
    ]
    return Row(repr(operator), list(np.asarray(made["image"]).astype(np.uint8)), captions)


def draw(rows: list[Row], path: Path) -> None:
    """Write the sheet: a title and its pictures, row by row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    width, height = _PANEL_INCHES[0] * COLUMNS, _PANEL_INCHES[1] + 2 * _LINE_INCHES
    figure = plt.figure(figsize=(width, height * len(rows)), layout="constrained")
    for part, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        title = "\n".join(textwrap.wrap(row.title, 110))
        part.suptitle(title, x=0.01, ha="left", fontsize=10, family="monospace")
        panels = part.subplots(1, COLUMNS, squeeze=False)[0]
        for panel in panels:
            panel.axis("off")
        for panel, picture, caption in zip(panels, row.pictures, row.captions, strict=False):
            panel.imshow(picture, interpolation="nearest")
            panel.set_title(caption, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("build/operators.png"))
    path = parser.parse_args().file
    draw(rows_of_sheet(), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
