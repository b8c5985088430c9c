"""Images in a folder for each class."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, ImageFolderSource, Shuffle
from loader.testing import assert_resumes_exactly
from operators import DecodeImage, Resize
from tests.source_checks import assert_is_a_source_of

NAMES = ["b/2.png", "a/1.JPG", "c c/x/3.jpeg", "a/0.png", "b/1.webp", "c c/4.TIFF", "b/0.bmp"]
SORTED = ["a/0.png", "a/1.JPG", "b/0.bmp", "b/1.webp", "b/2.png", "c c/4.TIFF", "c c/x/3.jpeg"]
LABELS = [0, 0, 1, 1, 1, 2, 2]


def write(folder: Path, names: list[str] = NAMES) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"image {name}".encode())
    return folder


def test_every_image_is_a_record_whatever_the_batches_and_restarts(tmp_path: Path):
    images = np.empty(len(SORTED), object)
    images[:] = [f"image {name}".encode() for name in SORTED]
    expected = {"image": images, "label": np.array(LABELS, np.int32)}
    source = ImageFolderSource(write(tmp_path))
    assert_is_a_source_of(source, expected, "image")
    assert source.classes == ("a", "b", "c c")
    assert source.labels.tolist() == LABELS
    assert source.labels.dtype == source.gather(np.array([3]))["label"].dtype == np.int32
    assert source.locate(6) == str(tmp_path / "c c/x/3.jpeg")
    assert repr(source) == "ImageFolderSource(7 images of 3 classes)"


def test_labels_and_spec_are_known_without_reading(tmp_path: Path):
    source = ImageFolderSource(write(tmp_path))
    for path in source.paths:
        Path(path).unlink()
    assert source.labels.tolist() == LABELS
    assert DataLoader(source, batch_size=4).pipeline.specs.row["label"].dtype == np.int32
    with pytest.raises(ValueError, match=r"cannot read record 3, .*b/1\.webp: No such file"):
        source.gather(np.array([3]))


def test_hidden_files_and_files_that_are_not_images_are_skipped(tmp_path: Path):
    hidden = [".DS_Store/0.png", "a/._0.png", "a/.cache/0.png", "b/notes.txt", "b/Thumbs.db"]
    source = ImageFolderSource(write(tmp_path, NAMES + hidden))
    assert [Path(path).relative_to(tmp_path).as_posix() for path in source.paths] == SORTED


def test_an_empty_class_is_named(tmp_path: Path):
    (write(tmp_path) / "empty").mkdir()
    (tmp_path / "empty/readme.txt").write_text("nothing yet")
    with pytest.raises(ValueError, match=r"class 'empty' has no image .*\.jpg.*classes=\[\.\.\.\]"):
        ImageFolderSource(tmp_path)
    classes = ("empty", "gone", "c c", "b", "a")
    source = ImageFolderSource(tmp_path, classes=classes)
    assert source.classes == classes
    assert source.labels.tolist() == [2, 2, 3, 3, 3, 4, 4]
    assert source[0]["image"] == b"image c c/4.TIFF"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a", "b"], r"folders \['c c'\] of .* are not in classes=\['a', 'b'\]"),
        (["a", "b", "c c", "b"], "has a name twice"),
    ],
)
def test_classes_that_do_not_fit_are_refused(classes: list[str], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        ImageFolderSource(write(tmp_path), classes=classes)


def test_a_folder_that_has_no_classes_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no folder in .*FilesSource\(paths, leaf='image'"):
        ImageFolderSource(write(tmp_path / "flat", ["0.png"]))
    with pytest.raises(ValueError, match=r"'.*0\.png' is a file: name a folder"):
        ImageFolderSource(tmp_path / "flat/0.png")
    with pytest.raises(ValueError, match="'nowhere' is not there"):
        ImageFolderSource("nowhere")
    with pytest.raises(ValueError, match="nothing says what there is in one at an address of http"):
        ImageFolderSource("https://127.0.0.1/photos")
    (tmp_path / "none/a").mkdir(parents=True)
    with pytest.raises(ValueError, match="the source is empty"):
        ImageFolderSource(tmp_path / "none", classes=["a"])


def test_images_outside_of_the_classes_are_warned_of(tmp_path: Path):
    with pytest.warns(UserWarning, match=r"1 images are in .*'loose\.png' first") as warned:
        source = ImageFolderSource(write(tmp_path, [*NAMES, "loose.png"]))
    assert warned[0].filename == __file__
    assert len(source) == len(NAMES)


def test_other_classes_and_contents_are_other_data(tmp_path: Path):
    saved = DataLoader(ImageFolderSource(write(tmp_path / "one")), batch_size=2).get_state()
    elsewhere = ImageFolderSource(write(tmp_path / "two"))
    DataLoader(elsewhere, batch_size=2).set_state(saved)
    for classes in (["b", "a", "c c"], ["a", "b", "c c", "d"]):
        other = ImageFolderSource(tmp_path / "one", classes=classes)
        with pytest.raises(ValueError, match=r"data\.classes"):
            DataLoader(other, batch_size=2).set_state(saved)
    (tmp_path / "two/a/0.png").rename(tmp_path / "two/b/9.png")
    with pytest.raises(ValueError, match=r"data\.files"):
        DataLoader(ImageFolderSource(tmp_path / "two"), batch_size=2).set_state(saved)


def test_images_of_different_sizes_are_decoded_and_a_broken_one_is_named(tmp_path: Path):
    cv2 = pytest.importorskip("cv2")
    write(tmp_path, [f"{name}/{n}.png" for name in "ab" for n in range(5)])
    for number, path in enumerate(sorted(tmp_path.glob("*/*.png"))):
        cv2.imwrite(str(path), np.full((4 + number, 9 - number % 3, 3), 20 * number, np.uint8))

    def make() -> DataLoader:
        operators = [DecodeImage("image"), Resize("image", 8)]
        source = ImageFolderSource(tmp_path)
        return DataLoader(source, batch_size=5, order=Shuffle(0), epochs=2, operators=operators)

    assert_resumes_exactly(make)
    seen = [
        (int(image[0, 0, 0]), int(label))
        for batch in make().host_batches()
        for image, label in zip(batch["image"], batch["label"], strict=True)
        if batch["valid_mask"].all()
    ]
    assert sorted(seen) == sorted((20 * n, n // 5) for n in range(10) for _ in range(2))
    (tmp_path / "b/2.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"record 7 \(.*b/2\.png\).*no whole JPEG or PNG"):
        list(make())


def test_a_folder_that_comes_again_through_a_link_is_refused(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "a" / "latest").symlink_to(".")
    with pytest.raises(ValueError, match=r"latest' is the folder .*a' again, through a link"):
        ImageFolderSource(tmp_path)


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    scandir = os.scandir

    def refused(path: Any) -> Any:  # root may read everything, so the system cannot refuse it
        if os.fspath(path).endswith("x"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError, match="Permission denied"):
        ImageFolderSource(tmp_path)
