"""DecodeImage on every form of image there is, and on a thousand that are damaged."""

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from loader import DataLoader, Mask, RowError
from operators import CenterCrop, DecodeImage, Resize

SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
GREY = np.array([[0.299], [0.587], [0.114]])  # of red, green and blue
SIZES = [(1, 1), (1, 9), (9, 1), (7, 8), (8, 8), (17, 31), (33, 16)]


def smooth(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A picture that compresses well, so that it can be compared: red, green and blue."""
    height, width = shape[:2]
    rows, columns = np.mgrid[:height, :width] / 64
    waves = [np.sin(3 * rows + n + seed) + np.cos(2 * columns * (n + 1)) for n in range(3)]
    image = (np.stack(waves, -1) * 60 + 128).astype(np.uint8)
    return image if len(shape) == 3 else image[..., 0]


def encoded(suffix: str, image: np.ndarray, *settings: int) -> bytes:
    image = image[..., ::-1] if image.ndim == 3 and image.shape[2] == 3 else image
    done, data = cv2.imencode(suffix, image, list(settings))
    assert done
    return data.tobytes()


def decoded(data: bytes, **settings: Any) -> np.ndarray:
    return DecodeImage("x", **settings)({"x": np.array([data], object)})["x"][0]


def assert_near(got: np.ndarray, want: np.ndarray, most: float) -> None:
    """Of the same shape, and as good as the same picture."""
    assert got.shape == want.shape
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - want).mean() <= most


# What is decoded


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("progressive", [0, 1])
def test_jpegs_of_every_sampling_and_size(sampling: str, progressive: int):
    how = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling], cv2.IMWRITE_JPEG_QUALITY, 98)
    for size in SIZES:
        image = smooth((*size, 3))
        data = encoded(".jpg", image, *how, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
        assert (b"\xff\xc2" in data) == bool(progressive)
        assert_near(decoded(data), image, 6)
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).reshape(*size, 1)
        assert_near(decoded(data, channels=1), grey, 4)


def test_grey_files_give_three_equal_channels_or_one():
    image = smooth((17, 31))
    for suffix in (".jpg", ".png", ".webp"):
        data = encoded(suffix, image)
        three, one = decoded(data), decoded(data, channels=1)
        assert_near(one, image[..., None], 3)
        assert three.shape == (17, 31, 3)
        if suffix != ".webp":  # which has colours always
            assert np.array_equal(three, one.repeat(3, 2))


def png(rows: np.ndarray, depth: int, colours: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of these bytes, a line of each row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    width = rows.shape[1] * 8 // depth if rows.ndim == 2 else rows.shape[1]
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colours, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", lines), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_pngs_of_16_bits_keep_their_upper_8():
    high = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    low = np.random.default_rng(1).integers(0, 256, (9, 11, 3), np.uint8)
    data = png(np.stack([high, low], -1), 16, 2)
    assert np.array_equal(decoded(data), high)
    grey = encoded(".png", np.arange(0, 60000, 1000, dtype=np.uint16).reshape(6, 10))
    want = np.arange(0, 60000, 1000).reshape(6, 10, 1) >> 8
    assert np.array_equal(decoded(grey, channels=1), want)


def test_the_colours_under_an_alpha_channel_are_kept_and_it_is_dropped():
    rgba = np.random.default_rng(0).integers(0, 256, (9, 11, 4), np.uint8)
    assert np.array_equal(decoded(png(rgba, 8, 6)), rgba[..., :3])
    webp = encoded(".webp", rgba[..., [2, 1, 0, 3]], cv2.IMWRITE_WEBP_QUALITY, 101)
    opaque = rgba[..., 3] > 0  # where nothing is seen WebP may have any colour
    assert np.array_equal(decoded(webp)[opaque], rgba[..., :3][opaque])
    both = np.random.default_rng(1).integers(0, 256, (9, 11, 2), np.uint8)
    assert np.array_equal(decoded(png(both, 8, 4), channels=1), both[..., :1])


def test_palettes_are_looked_up_transparent_colours_too():
    colours = np.random.default_rng(0).integers(0, 256, (16, 3), np.uint8)
    numbers = np.random.default_rng(1).integers(0, 16, (8, 12), np.uint8)
    palette = (b"PLTE", colours.tobytes()), (b"tRNS", bytes([0, 128, 255]))
    for chunks in (palette[:1], palette):
        assert np.array_equal(decoded(png(numbers, 8, 3, *chunks)), colours[numbers])
    two_in_a_byte = numbers[:, ::2] << 4 | numbers[:, 1::2]
    assert np.array_equal(decoded(png(two_in_a_byte, 4, 3, *palette)), colours[numbers])


def test_webp_with_and_without_loss_and_its_extended_form():
    image = smooth((33, 16, 3))
    assert np.array_equal(decoded(encoded(".webp", image, cv2.IMWRITE_WEBP_QUALITY, 101)), image)
    assert_near(decoded(encoded(".webp", image, cv2.IMWRITE_WEBP_QUALITY, 90)), image, 4)


# A JPEG file in cyan, magenta, yellow and black, inverted as Adobe writes it: 8 x 8, one block for
# each of the four, all of one colour. Only the first coefficient of a block is not zero.
def cmyk(cyan: int, magenta: int, yellow: int, black: int) -> bytes:
    def part(marker: int, data: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data

    adobe = part(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0))
    table = part(0xDB, b"\0" + b"\x01" * 64)
    ids = [bytes([n, 0x11, 0]) for n in range(1, 5)]
    frame = part(0xC0, struct.pack(">BHHB", 8, 8, 8, 4) + b"".join(ids))
    # Codes of 4 bits for the lengths 0 to 11 of a first coefficient; one code of one bit: the end.
    first = part(0xC4, b"\0" + bytes([0, 0, 0, 12, *[0] * 12]) + bytes(range(12)))
    rest = part(0xC4, b"\x10" + bytes([1, *[0] * 15]) + b"\0")
    scan = part(0xDA, b"\4" + b"".join(bytes([n, 0]) for n in range(1, 5)) + b"\0\x3f\0")
    bits = ""
    for ink in (cyan, magenta, yellow, black):
        value = ((255 - ink) - 128) * 8
        length = abs(value).bit_length()
        bits += f"{length:04b}"
        if length:
            bits += f"{value if value > 0 else value + (1 << length) - 1:0{length}b}"
        bits += "0"
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return b"\xff\xd8" + adobe + table + frame + first + rest + scan + body + b"\xff\xd9"


def test_jpegs_in_cmyk_become_red_green_and_blue():
    for inks in ((0, 0, 0, 0), (255, 0, 0, 0), (0, 200, 40, 0), (10, 20, 30, 128), (0, 0, 0, 255)):
        *colours, black = inks
        want = [(255 - ink) * (255 - black) / 255 for ink in colours]
        image = decoded(cmyk(*inks))
        assert image.shape == (8, 8, 3)
        assert np.abs(image - want).max() <= 2, inks
        assert decoded(cmyk(*inks), channels=1).shape == (8, 8, 1)


# Orientation


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + tag + b"\0\0\0\0"
    return jpeg[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(exif) + 2) + exif + jpeg[2:]


TURNED = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: x.transpose(1, 0, 2)[:, ::-1],
    7: lambda x: x.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda x: x.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("orientation", TURNED)
def test_pixels_are_as_stored_or_upright_as_the_file_says(orientation: int):
    plain = encoded(".jpg", smooth((17, 31, 3)))
    data = with_orientation(plain, orientation)
    assert np.array_equal(decoded(data), decoded(plain))
    assert np.array_equal(decoded(data, upright=True), TURNED[orientation](decoded(plain)))
    grey = decoded(data, upright=True, channels=1)
    assert np.array_equal(grey, TURNED[orientation](decoded(plain, channels=1)))


def test_upright_is_another_fingerprint_and_the_default_is_none():
    def state(**settings: Any) -> Any:
        return loader_of([encoded(".png", smooth((4, 4, 3)))], **settings).get_state()

    assert state() == state(upright=False) == state(least=None)
    for settings in ({"upright": True}, {"least": (2, 2)}, {"least": 3}):
        with pytest.raises(ValueError, match="operators: saved"):
            loader_of([encoded(".png", smooth((4, 4, 3)))], **settings).set_state(state())


def loader_of(files: list[bytes], on_error: Any = "raise", **settings: Any) -> DataLoader:
    operators = [DecodeImage("x", **settings), Resize("x", 4)]
    return DataLoader({"x": files}, batch_size=8, operators=operators, on_error=on_error)


# Decoding at a part of the size


def test_least_decodes_a_jpeg_at_the_smallest_size_that_is_large_enough():
    image = smooth((401, 503, 3))
    data = encoded(".jpg", image)
    for least, size in (
        ((401, 503), (401, 503)),
        ((202, 10), (401, 503)),  # half of 401, rounded up, is 201
        ((201, 252), (201, 252)),
        (101, (101, 126)),
        ((10, 64), (101, 126)),
        ((51, 63), (51, 63)),
        (1, (51, 63)),
        (600, (401, 503)),  # never larger than it is
    ):
        smaller = decoded(data, least=least)
        want = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        assert_near(smaller, want.reshape(*size, 3), 8)
        assert_near(decoded(data, least=least, channels=1), smaller @ GREY, 3)


def test_least_asks_for_nothing_of_other_files_and_of_what_it_does_not_know():
    image = smooth((60, 80, 3))
    for suffix in (".png", ".webp", ".bmp"):
        assert decoded(encoded(suffix, image), least=4).shape == (60, 80, 3)


def test_least_holds_for_an_image_that_is_turned_upright():
    lying = with_orientation(encoded(".jpg", smooth((100, 200, 3))), 6)  # 200 high, 100 wide
    for least in ((100, 50), (50, 100), (25, 50), (24, 24), (200, 100)):
        shape = decoded(lying, least=least, upright=True).shape
        assert shape[0] >= least[0]
        assert shape[1] >= least[1] or shape == (200, 100, 3)
    assert decoded(lying, least=24, upright=True).shape == (50, 25, 3)


def test_least_refuses_what_is_cut_off_or_too_large_too():
    data = encoded(".jpg", smooth((64, 64, 3)))
    with pytest.raises(RowError, match="no whole JPEG"):
        decoded(data[:-40], least=8)
    with pytest.raises(RowError, match="64 x 64 pixels, which is more than 4,000"):
        decoded(data, least=8, most_pixels=4000)


# Damage

MUTATED = """
import json, resource, sys
import numpy as np
from loader import DataLoader, Mask, RowError
from operators import DecodeImage, Resize
files = [bytes.fromhex(line) for line in open(sys.argv[1])]
counts = []
for settings in ({}, {"least": (8, 8), "upright": True, "channels": 1}):
    operators = [DecodeImage("x", most_pixels=10**6, **settings), Resize("x", 8)]
    mask = Mask(most=len(files), log=None)
    loader = DataLoader({"x": files}, batch_size=100, operators=operators, on_error=mask)
    counts.append([int(batch["valid_mask"].sum()) for batch in loader.host_batches()])
    refused = 0
    for file in files:
        try:
            operators[0]({"x": np.array([file], object)})
        except RowError as error:
            assert "DecodeImage: leaf 'x' is " in str(error), error
            refused += 1
    counts.append(len(files) - refused)
counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(counts))
"""


def mutated(count: int) -> list[bytes]:
    """Files of all kinds, each cut off, or with other bytes in some places, or with some twice."""
    rng = np.random.default_rng(0)
    image = smooth((17, 31, 3))
    whole = [
        *(encoded(".jpg", image, cv2.IMWRITE_JPEG_PROGRESSIVE, n) for n in (0, 1)),
        with_orientation(encoded(".jpg", image), 6),
        cmyk(10, 20, 30, 40),
        encoded(".png", image),
        png(np.random.default_rng(0).integers(0, 256, (9, 11, 4), np.uint8), 8, 6),
        *(encoded(".webp", image, cv2.IMWRITE_WEBP_QUALITY, n) for n in (50, 101)),
        *(encoded(suffix, image) for suffix in (".bmp", ".tiff", ".ppm", ".gif")),
    ]
    files = []
    for number in range(count):
        data = bytearray(whole[number % len(whole)])
        how = number // len(whole) % 4
        if how == 0:
            data = data[: rng.integers(1, len(data))]
        elif how == 3:
            start, stop = sorted(rng.integers(0, len(data), 2).tolist())
            data[start:start] = data[start:stop]
        else:  # anywhere, or in the header, where sizes are
            most = len(data) if how == 1 else min(60, len(data))
            for place in rng.integers(0, most, rng.integers(1, 6)):
                data[place] = rng.integers(0, 256)
        files.append(bytes(data))
    return files


def test_a_thousand_damaged_images_are_decoded_masked_or_refused_and_nothing_crashes(
    tmp_path: Path,
):
    (tmp_path / "files").write_text("\n".join(file.hex() for file in mutated(1000)))
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(  # a process of its own, to survive it
        [sys.executable, "-c", MUTATED, str(tmp_path / "files")],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    batches, alone, of_reduced, reduced_alone, most_memory = json.loads(done.stdout)
    assert len(batches) == len(of_reduced) == 10
    assert sum(batches) == alone  # what is masked is what is refused
    assert sum(of_reduced) == reduced_alone
    assert 100 < alone < 900  # some of each
    assert most_memory < 2_000_000  # KB: a forged length of a chunk would ask for more


@pytest.mark.parametrize("kind", ["VP8 ", "VP8L", "VP8X"])
def test_a_webp_of_too_many_pixels_is_refused_before_it_is_decoded(kind: str):
    image = np.dstack([smooth((20, 30, 3)), np.full((20, 30), 99, np.uint8)])
    settings = {"VP8 ": (image[..., :3], 80), "VP8L": (image[..., :3], 101), "VP8X": (image, 80)}
    pixels, quality = settings[kind]
    data = bytearray(encoded(".webp", pixels, cv2.IMWRITE_WEBP_QUALITY, quality))
    assert data[12:16] == kind.encode()
    assert decoded(bytes(data), most_pixels=600).shape == (20, 30, 3)
    with pytest.raises(RowError, match="20 x 30 pixels, which is more than 599"):
        decoded(bytes(data), most_pixels=599)
    if kind == "VP8 ":
        data[26:30] = struct.pack("<HH", 16000, 15000)
    elif kind == "VP8L":
        data[21:25] = struct.pack("<I", 15999 | 14999 << 14)
    else:
        data[24:30] = (15999).to_bytes(3, "little") + (14999).to_bytes(3, "little")
    with pytest.raises(RowError, match="15000 x 16000 pixels, which is more than 100,000,000"):
        decoded(bytes(data))


def test_a_bad_file_among_good_ones_is_a_masked_row():
    files = [encoded(".png", smooth((9, 9, 3), n)) for n in range(8)]
    files[5] = files[5][:50]
    (batch,) = loader_of(files, Mask(log=None)).host_batches()
    assert batch["valid_mask"].tolist() == [n != 5 for n in range(8)]
    with pytest.raises(ValueError, match="record 5: DecodeImage: leaf 'x' is no whole"):
        next(loader_of(files).host_batches())
    operators = [DecodeImage("x"), CenterCrop("x", 9)]
    whole = DataLoader({"x": files[:5]}, batch_size=5, operators=operators).host_batch_at(0)
    assert np.array_equal(whole["x"][3], smooth((9, 9, 3), 3))
