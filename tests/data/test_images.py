"""Files that anyone may have made: what is read, how, and what is refused without being opened."""

import io
import os
import socket
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedlgd.core.errors import DataError
from fedlgd.data import images
from fedlgd.data.images import Header, ImageError, ImageFile, shown
from fedlgd.data.own.decode import pixel_digest
from fedlgd.data.prepare import fitted
from tests.data.pictures import noise, save
from tests.errors import refuses


def read(path):
    return ImageFile(path, path.parent.resolve()).read()


def refused(path, *codes):
    with pytest.raises(ImageError) as caught:
        read(path)
    assert caught.value.code in codes
    assert str(path) in str(caught.value) or shown(path) in str(caught.value)
    assert caught.value.way_out


def png(width, height, *chunks):
    """A PNG whose header says what it likes."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(*c) for c in chunks) + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp", "ppm"])
def test_pixels_of_a_lossless_format_arrive_unchanged(tmp_path, suffix):
    image = noise(1)
    options = {"lossless": True} if suffix == "webp" else {}
    picture = read(save(tmp_path / f"x.{suffix}", image, **options))
    assert np.array_equal(np.asarray(picture.image), np.asarray(image))
    assert picture.remarks == ()


def test_grey_stays_grey_and_jpeg_is_read(tmp_path):
    assert read(save(tmp_path / "x.jpg", noise(1, grey=True))).image.mode == "L"
    assert read(save(tmp_path / "y.JPEG", noise(1))).image.mode == "RGB"


def test_the_header_is_what_decoding_will_give(tmp_path):
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"):
        suffix = "tif" if mode == "CMYK" else "png"
        image = Image.new(mode, (7, 5)) if mode == "I;16" else noise(1).resize((7, 5)).convert(mode)
        path = save(tmp_path / f"{mode.replace(';', '')}.{suffix}", image)
        picture = read(path)
        assert ImageFile(path, tmp_path.resolve()).header() == Header(7, 5, picture.image.mode == "L"), mode


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied(tmp_path, turn, suffix):
    """The bright corner of an upright image is its top left one, however the camera was held."""
    upright = Image.new("L", (16, 32))
    upright.paste(255, (0, 0, 8, 8))
    back = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}
    stored = upright if turn == 1 else upright.transpose(images.TURNS[back[turn]])
    exif = Image.Exif()
    exif[0x0112] = turn
    path = save(tmp_path / f"x.{suffix}", stored.convert("RGB"), exif=exif)
    picture = np.asarray(read(path).image.convert("L"))
    assert picture.shape == (32, 16)
    assert picture[1:7, 1:7].min() > 200
    assert picture[12:, 12:].max() < 60
    header = ImageFile(path, tmp_path.resolve()).header()
    assert (header.width, header.height) == (16, 32)


def test_what_is_transparent_shows_black(tmp_path):
    image = noise(1).convert("RGBA")
    image.putpixel((0, 0), (200, 100, 50, 0))
    image.putpixel((1, 0), (200, 100, 50, 51))
    picture = read(save(tmp_path / "x.png", image))
    assert picture.image.getpixel((0, 0)) == (0, 0, 0)
    assert picture.image.getpixel((1, 0)) == (40, 20, 10)
    assert picture.image.getpixel((2, 0)) == image.getpixel((2, 0))[:3]
    assert picture.remarks[0].code == "partly-transparent"


def test_an_opaque_alpha_channel_is_dropped_without_a_word(tmp_path):
    picture = read(save(tmp_path / "x.png", noise(1).convert("RGBA")))
    assert np.array_equal(np.asarray(picture.image), np.asarray(noise(1)))
    assert picture.remarks == ()


def test_a_transparent_colour_of_a_palette_shows_black(tmp_path):
    image = noise(1).quantize(4)
    shade = image.getpixel((0, 0))
    picture = read(save(tmp_path / "x.png", image, transparency=shade))
    assert picture.image.getpixel((0, 0)) == (0, 0, 0)
    assert picture.image.mode == "RGB"


def test_sixteen_bits_keep_their_upper_eight(tmp_path):
    values = np.array([[0, 255, 256, 65535]], np.uint16)
    picture = read(save(tmp_path / "x.png", Image.fromarray(values)))
    assert np.asarray(picture.image).tolist() == [[0, 0, 1, 255]]
    assert picture.remarks == (("sixteen-bits", {"divisor": 256}),)


def test_twelve_bits_in_a_sixteen_bit_file_are_called_dark(tmp_path):
    picture = read(save(tmp_path / "x.tif", Image.fromarray(np.array([[0, 4095]], np.uint16))))
    assert picture.remarks == (("sixteen-bits-nearly-black", {"high": 4095}),)


def test_more_than_sixteen_bits_and_floats_are_refused(tmp_path):
    refused(save(tmp_path / "x.tif", Image.fromarray(np.array([[0, 70_000]], np.int32))), "cannot-show-image")
    refused(save(tmp_path / "y.tif", Image.fromarray(np.array([[0.5]], np.float32))), "cannot-show-image")


def test_cmyk_is_converted_and_reported(tmp_path):
    picture = read(save(tmp_path / "x.jpg", Image.new("CMYK", (4, 4), (255, 0, 0, 0)), quality=100))
    assert picture.image.mode == "RGB"
    assert picture.remarks == (("image-in-cmyk", {"mode": "CMYK"}),)


@pytest.mark.parametrize("suffix", ["gif", "tif", "webp", "png"])
def test_the_first_of_several_frames_is_used(tmp_path, suffix):
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    path = save(tmp_path / f"x.{suffix}", first, save_all=True, append_images=[second], duration=100)
    picture = read(path)
    red, green, blue = picture.image.convert("RGB").getpixel((4, 4))
    assert red > 240
    assert max(green, blue) < 15
    assert picture.remarks[0].code == "several-frames"


def test_a_png_named_jpg_is_read_and_reported(tmp_path):
    path = tmp_path / "x.jpg"
    noise(1).save(path, "PNG")
    picture = read(path)
    assert np.array_equal(np.asarray(picture.image), np.asarray(noise(1)))
    assert picture.remarks == (("file-of-other-format", {"found": "PNG", "suffix": ".jpg"}),)


@pytest.mark.parametrize(
    "content", [b"hello, I am text", b"%PDF-1.7", b"<svg/>", b"\x00" * 100, b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_no_image_is_refused(tmp_path, content):
    (tmp_path / "x.png").write_bytes(content)
    refused(tmp_path / "x.png", "unknown-image-format")


def test_formats_outside_the_list_are_refused_even_if_pillow_knows_them(tmp_path):
    buffer = io.BytesIO()
    noise(1).save(buffer, "TGA")
    (tmp_path / "x.png").write_bytes(buffer.getvalue())
    noise(1).save(tmp_path / "y.pcx")
    (tmp_path / "y.pcx").rename(tmp_path / "y.png")
    refused(tmp_path / "x.png", "unknown-image-format")
    refused(tmp_path / "y.png", "unknown-image-format")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "x.png").touch()
    refused(tmp_path / "x.png", "image-empty")


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm"])
def test_a_file_cut_off_is_refused(tmp_path, suffix):
    path = save(tmp_path / f"x.{suffix}", noise(1, 64))
    content = path.read_bytes()
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(content[: int(len(content) * share)])
        refused(path, "image-damaged", "unknown-image-format", "cannot-show-image")


@pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (10_000, 6_000), (30_000, 2)])
def test_a_bomb_is_refused_from_its_header_alone(tmp_path, size):
    body = zlib.compress(b"\0" * 1000)
    (tmp_path / "x.png").write_bytes(png(*size, (b"IDAT", body)))
    began = time.process_time()
    refused(tmp_path / "x.png", "image-of-too-many-pixels", "image-unpacks-to-too-much")
    assert time.process_time() - began < 1


def test_a_real_bomb_of_little_bytes_is_not_decoded(tmp_path):
    """Sixty million pixels in 60 kB."""
    raw = zlib.compress(b"\0" * (10_001 * 6_000), 9)
    (tmp_path / "x.png").write_bytes(png(10_000, 6_000, (b"IDAT", raw)))
    assert (tmp_path / "x.png").stat().st_size < 100_000
    refused(tmp_path / "x.png", "image-of-too-many-pixels")


def test_a_huge_file_is_refused_unread(tmp_path):
    with (tmp_path / "x.bmp").open("wb") as file:
        file.truncate(images.MAX_FILE_BYTES + 1)
    refused(tmp_path / "x.bmp", "image-of-too-many-bytes")


def test_a_link_inside_the_tree_is_followed_and_one_outside_refused(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    save(inside / "x.png", noise(1))
    save(outside / "secret.png", noise(2))
    (inside / "y.png").symlink_to(inside / "x.png")
    (inside / "z.png").symlink_to(outside / "secret.png")
    (inside / "ring.png").symlink_to(inside / "ring.png")
    assert np.array_equal(np.asarray(read(inside / "y.png").image), np.asarray(noise(1)))
    refused(inside / "z.png", "image-outside")
    refused(inside / "ring.png", "image-cannot-be-opened")
    with refuses("image-outside"):
        ImageFile(inside / ".." / "out" / "secret.png", inside.resolve()).read()


def test_pipes_devices_and_sockets_are_never_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "null.png").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as door:
        monkeypatch.chdir(tmp_path)
        door.bind("door.png")
        monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
        for name in ("pipe.png", "door.png"):
            refused(tmp_path / name, "image-not-a-file")
    refused(tmp_path / "null.png", "image-outside")
    with refuses("image-not-a-file"):
        ImageFile(tmp_path / "null.png", tmp_path.resolve().parents[-1]).read()


def test_a_file_that_is_not_there_or_may_not_be_read_is_named(tmp_path):
    refused(tmp_path / "x.png", "image-cannot-be-opened")
    if os.getuid():
        save(tmp_path / "y.png", noise(1)).chmod(0)
        refused(tmp_path / "y.png", "image-cannot-be-opened")


@settings(deadline=None, max_examples=120)
@given(
    where=st.integers(0, 400), what=st.binary(min_size=1, max_size=8), suffix=st.sampled_from(["png", "gif", "tif"])
)
def test_no_damage_ends_in_anything_but_an_image_or_our_error(tmp_path_factory, where, what, suffix):
    path = save(
        tmp_path_factory.mktemp("d") / f"x.{suffix}", noise(1).quantize(16) if suffix == "gif" else noise(1)
    )
    content = bytearray(path.read_bytes())
    content[where % len(content) : where % len(content) + len(what)] = what
    path.write_bytes(content)
    try:
        picture = read(path)
    except DataError:
        return
    assert picture.image.mode in ("L", "RGB")


def test_names_of_any_bytes_can_be_printed(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\n\x1b[31m.png")
    path.write_bytes(b"no")
    with refuses("unknown-image-format") as caught:
        read(path)
    assert str(caught.value).isprintable()
    str(caught.value).encode()


def test_the_fingerprint_is_of_what_is_seen(tmp_path):
    colour, grey = noise(1), noise(1, grey=True)
    assert pixel_digest(grey) == pixel_digest(grey.convert("RGB"))
    assert pixel_digest(colour) == pixel_digest(read(save(tmp_path / "x.bmp", colour)).image)
    assert pixel_digest(colour) != pixel_digest(noise(2))
    assert pixel_digest(Image.new("L", (2, 8))) != pixel_digest(Image.new("L", (8, 2)))


class TestFitting:
    WIDE = Image.fromarray(np.repeat(np.array([[0, 100, 100, 0]], np.uint8).repeat(10, 1), 20, 0))

    def test_zero_leaves_the_image_as_it_is(self):
        assert fitted(self.WIDE, 0) is self.WIDE

    def test_stretch_shows_the_whole_image(self):
        got = np.asarray(fitted(self.WIDE, 8))
        assert got.shape == (8, 8)
        assert got[4, 0] == got[4, 7] == 0
        assert got[4, 3] == got[0, 4] == 100

    def test_crop_shows_the_middle_square(self):
        assert np.asarray(fitted(self.WIDE, 8, "crop")).tolist() == [[100] * 8] * 8

    def test_pad_keeps_the_aspect_and_shows_black_beside(self):
        got = np.asarray(fitted(self.WIDE, 8, "pad"))
        assert got[:2].max() == got[6:].max() == 0
        assert got[2:6, 3:5].min() == 100

    @pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
    def test_a_line_of_pixels_becomes_a_square_too(self, fit):
        assert fitted(Image.new("RGB", (5000, 1)), 16, fit).size == (16, 16)
