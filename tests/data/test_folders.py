import os

import numpy as np
import pytest
from PIL import Image

from anode.data.folders import pictures_in, read_picture, read_pictures


def draw(path, size=(6, 5), mode="L", value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), value, np.uint8)).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    for i in range(3):
        draw(root / "cat" / f"{i}.png", value=10 * i)
        draw(root / "dog" / f"{i}.jpg", value=100)
    return root


def refuses(folder, *words):
    with pytest.raises(ValueError) as error:
        read_pictures(folder)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_folder_for_each_class_is_read_in_order(folder):
    found = read_pictures(folder)
    assert (found.classes, found.train.labels.tolist(), found.test) == (("cat", "dog"), [0, 0, 0, 1, 1, 1], None)
    assert found.train.shape == (1, 5, 6)
    assert found.train.images[:3, 0, 0, 0].tolist() == [0, 10, 20]
    assert found.notes == ()


def test_the_folders_train_and_test_are_the_two_splits(folder, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    folder.rename(root / "train")
    draw(root / "test" / "dog" / "a.png")
    found = read_pictures(root)
    assert (len(found.train), found.test.labels.tolist()) == (6, [1])
    draw(root / "test" / "cow" / "a.png")
    refuses(root, f"{root / 'test' / 'cow'}: is a class that {root / 'train'} does not have")


def test_one_coloured_picture_makes_all_coloured(folder):
    draw(folder / "cat" / "9.png", mode="RGBA")
    assert read_pictures(folder).train.shape == (3, 5, 6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_as_large_as_they_are_when_turned_upright(tmp_path, orientation):
    pixels = np.zeros((5, 6), np.uint8)
    pixels[0] = 255
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
    found = read_pictures(tmp_path)
    assert found.train.shape == ((1, 5, 6) if orientation < 5 else (1, 6, 5))
    assert found.train.images[0].unique().tolist() == [0, 255]
    assert found.notes == ()


def test_other_sizes_are_resized_and_said(folder):
    draw(folder / "cat" / "9.png", size=(12, 12))
    found = read_pictures(folder)
    assert found.train.shape == (1, 32, 32)
    assert found.notes == ("pictures of 6x5 to 12x12 pixels are resized to 32x32; pass --side to change that",)
    assert read_pictures(folder, 4).train.shape == (1, 4, 4)


def test_large_pictures_become_small(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        draw(tmp_path / name, size=(100, 80))
    (note,) = read_pictures(tmp_path).notes
    assert note == "pictures of 100x80 pixels are resized to 32x32; pass --side to change that"


def test_other_files_are_counted(folder):
    (folder / "cat" / "readme.txt").write_text("hello")
    (folder / "cat" / ".hidden").write_text("hello")
    assert read_pictures(folder).notes == ("ignored: 1 file that is neither PNG nor JPEG",)


def test_the_checksum_changes_with_a_pixel(folder):
    before = read_pictures(folder).sha256
    assert read_pictures(folder).sha256 == before
    draw(folder / "cat" / "0.png", value=1)
    assert read_pictures(folder).sha256 != before


def test_a_picture_that_is_none_is_named(folder):
    (folder / "cat" / "9.png").write_text("not a picture")
    refuses(folder, f"{folder / 'cat' / '9.png'}: is not a PNG or JPEG picture", "remove it")


def test_a_damaged_picture_is_named(folder):
    path = folder / "dog" / "0.jpg"
    path.write_bytes(path.read_bytes()[:-40])
    refuses(folder, f"{path}: is a damaged picture", "replace or remove it")


def test_a_picture_of_16_bits_is_named(folder):
    path = folder / "cat" / "9.png"
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(path)
    refuses(folder, "9.png: takes 8 bits per value, got pixels of type I;16; convert it")
    with pytest.raises(ValueError, match=r"9\.png: takes 8 bits per value"):  # when it is to be predicted, too
        read_picture(path, (1, 5, 6))


def test_an_enormous_picture_is_named(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    refuses(folder, "has more pixels than Pillow reads; make it smaller or remove it")


def test_folders_that_are_no_classes_are_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", "takes a folder of pictures per class, but it has no folders")
    refuses(folder / "cat", "but it has 3 pictures and no folders; sort the pictures into folders")
    (folder / "cow").mkdir()
    refuses(folder, f"{folder / 'cow'}: takes PNG or JPEG pictures of its class")
    (folder / "cow").rmdir()
    draw(folder / "cow" / "1.png")
    refuses(folder, "1.png: is the only picture of class 'cow'; a class takes at least 2")


def test_hidden_files_and_folders_and_folders_named_like_pictures_are_ignored(folder):
    for name in (".hidden.png", "._0.png", ".thumbs/0.png"):
        (folder / "cat" / name).parent.mkdir(exist_ok=True)
        (folder / "cat" / name).write_text("not a picture")
    (folder / "cat" / "9.png").mkdir()
    (folder / ".git").mkdir()
    found = read_pictures(folder)
    assert (len(found.train), found.notes) == (6, ())
    assert len(pictures_in(folder)) == 6


def test_links_are_followed_unless_they_lead_to_a_folder_above_or_nowhere(folder):
    (folder / "cat" / "loop").symlink_to(folder)
    (folder / "cat" / "9.png").symlink_to(folder / "dog" / "0.jpg")
    assert len(read_pictures(folder).train) == 7
    (folder / "cat" / "8.png").symlink_to("gone.png")
    with pytest.raises(FileNotFoundError, match=r"8\.png"):
        read_pictures(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    assert "pipe.png" not in [path.name for path in pictures_in(folder)]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "P", "CMYK"])
def test_pictures_of_every_mode_of_8_bits_are_read(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    draw(path, mode=mode, value=255)
    assert read_picture(path, (3, 5, 6)).float().mean() > 250
    assert read_picture(path, (1, 5, 6)).shape == (1, 5, 6)


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    Image.new("P", (6, 5)).save(tmp_path / "a.png", transparency=bytes(256))
    assert read_picture(tmp_path / "a.png", (3, 5, 6)).shape == (3, 5, 6)


def test_a_photograph_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x112] = 6  # to be turned by a quarter, clockwise
    picture.save(tmp_path / "a.jpg", exif=exif)
    found = read_picture(tmp_path / "a.jpg", (1, 8, 8))[0].float()
    assert found[:, 4:].mean() > 250 > 5 > found[:, :4].mean()


def test_a_folder_train_alone_is_held_out_from_and_other_splits_are_refused(folder, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    folder.rename(root / "train")
    found = read_pictures(root)
    assert (found.classes, found.test) == (("cat", "dog"), None)
    draw(root / "val" / "cat" / "a.png")
    refuses(root, "takes folders 'train' and 'test', or a folder per class, got 'val'; rename 'val' to 'test'")


def test_more_pictures_than_fit_into_memory_are_refused(folder, monkeypatch):
    monkeypatch.setattr("anode.data.folders.MOST_BYTES", 6 * 5 * 6 - 1)
    refuses(folder, "side: takes a smaller size: 6 pictures of 1x5x6 need more than")


def test_a_single_class_is_refused(tmp_path):
    draw(tmp_path / "a" / "1.png")
    refuses(tmp_path, "takes folders of at least two classes, got 'a'")
