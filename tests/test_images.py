"""Loaders: archives and folders as people have them, what is missing, what is kept, and that reading streams."""
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

Image = pytest.importorskip("PIL.Image")
from robust_general import images
from robust_general.images import Images, center_crop, find_data, free_photographs, load_celeba, load_folder, load_free, load_images, resize, stream_celeba

NAMES = [f"{i:06}.jpg" for i in range(1, 7)]
SPLIT = dict(zip(NAMES, "001202"))


def jpeg(k, size=(178, 218), fmt="jpeg"):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(k).integers(0, 256, (*size[::-1], 3), np.uint8)).save(out, fmt)
    return out.getvalue()


@pytest.fixture
def celeba(tmp_path):
    root = tmp_path / "celeba"
    root.mkdir()
    (root / "list_eval_partition.txt").write_text("".join(f"{n} {k}\n" for n, k in SPLIT.items()))
    with zipfile.ZipFile(root / "img_align_celeba.zip", "w") as z:
        for k, n in enumerate(NAMES):
            z.writestr(f"img_align_celeba/{n}", jpeg(k))
    return root


@pytest.mark.parametrize("size", [8, 64, 50])
def test_archive_and_folder_agree(celeba, tmp_path, size):
    zipped = load_celeba(celeba, "train", size)
    with zipfile.ZipFile(celeba / "img_align_celeba.zip") as z:
        z.extractall(celeba)
    (celeba / "img_align_celeba.zip").unlink()
    assert torch.equal(load_celeba(celeba, "train", size)[:], zipped[:])
    assert zipped.shape == (3, size, size) and len(zipped) == 3 and zipped[:].dtype == torch.float32


def test_reading_is_lazy(celeba, monkeypatch):
    """The first picture is there before the last is touched, even if the last is broken."""
    with zipfile.ZipFile(celeba / "img_align_celeba.zip", "a") as z:
        z.writestr("img_align_celeba/000007.jpg", b"not a picture")
    with open(celeba / "list_eval_partition.txt", "a") as f:
        f.write("000007.jpg 0\n")
    stream = stream_celeba(celeba)
    assert [next(stream)[0] for _ in range(3)] == [NAMES[0], NAMES[1], NAMES[4]]
    with pytest.raises(OSError, match="000007.jpg is not a picture that can be read"):
        next(stream)


def test_cache(celeba, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load_celeba(celeba, "train", 16, cache=cache)
    monkeypatch.setattr(images, "_read", None)  # nothing is decoded a second time
    again = load_celeba(celeba, "train", 16, cache=cache)
    assert torch.equal(first[:], again[:]) and isinstance(again.pixels, np.memmap)
    monkeypatch.undo()
    for other in (dict(size=8), dict(size=16, antialias=True), dict(size=16, split="test")):
        load_celeba(celeba, **other, cache=cache)
    assert len(list(cache.iterdir())) == 4


def test_the_cache_has_its_checksum_when_it_gets_its_name(celeba, tmp_path, monkeypatch):
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: moved.append((images._sealed(a), Path(b).exists())) or replace(a, b))
    load_celeba(celeba, "train", 16, cache=tmp_path / "cache")
    assert moved == [(True, False)]
    path, = (tmp_path / "cache").iterdir()
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    load_celeba(celeba, "train", 16, cache=tmp_path / "cache")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before  # reading does not write
    path.chmod(0o644)
    path.write_bytes(before[0][:-4])  # without its checksum
    with pytest.raises(ValueError, match="delete it to have it made again"):
        load_celeba(celeba, "train", 16, cache=tmp_path / "cache")


def test_a_failed_cache_leaves_nothing(celeba, tmp_path):
    with zipfile.ZipFile(celeba / "img_align_celeba.zip", "w") as z:
        for n in NAMES:
            z.writestr(f"img_align_celeba/{n}", b"broken")
    with pytest.raises(OSError):
        load_celeba(celeba, "train", 16, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_what_is_missing(celeba, tmp_path):
    with pytest.raises(ValueError, match="split must be one of .* got 'validation'"):
        load_celeba(celeba, "validation")
    with pytest.raises(FileNotFoundError, match="list_eval_partition.txt"):
        load_celeba(tmp_path)
    with open(celeba / "list_eval_partition.txt", "a") as f:
        f.write("000008.jpg 1\n000009.jpg 1\n")
    with pytest.raises(FileNotFoundError, match="2 of 3 images of the split 'valid' are missing .* the first is 000008.jpg"):
        load_celeba(celeba, "valid")
    (celeba / "list_eval_partition.txt").write_text("000001.jpg train\n")
    with pytest.raises(ValueError, match="'000001.jpg train'"):
        load_celeba(celeba)


def test_folder(tmp_path):
    for k, (name, size) in enumerate({"a/wide.png": (40, 20), "b/tall.JPG": (10, 33), "grey.png": (12, 12)}.items()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(k, size, "png"))
    Image.new("L", (9, 9), 128).save(tmp_path / "grey.png")
    found = load_folder(tmp_path, size=16, held_out=0.0)
    assert len(found) == 3 and found.shape == (3, 16, 16)
    assert (found[2] == 128 / 255).all()  # sorted: a/wide, b/tall, grey
    with pytest.raises(ValueError, match="none of the 3 pictures"):
        load_folder(tmp_path, "test", 16, held_out=0.0)
    before = found[:]
    os.utime(tmp_path / "grey.png", ns=(1, 1))  # a changed file is read again
    cache = tmp_path.parent / "cache"
    load_folder(tmp_path, size=16, held_out=0.0, cache=cache)
    os.utime(tmp_path / "grey.png", ns=(2, 2))
    assert torch.equal(load_folder(tmp_path, size=16, held_out=0.0, cache=cache)[:], before) and len(list(cache.iterdir())) == 2


def test_free_patches_do_not_overlap():
    """Held-out patches come from the right quarter of each photograph, training patches from the rest."""
    pytest.importorskip("skimage")
    photos = free_photographs()
    assert len(photos) == 6 and all(x.dtype == torch.uint8 and x.shape[0] == 3 for x in photos.values())
    marked = {n: torch.where(torch.arange(x.shape[-1]) >= 3 * x.shape[-1] // 4, 255, 0).to(torch.uint8).expand(x.shape) for n, x in photos.items()}
    with pytest.MonkeyPatch.context() as m:
        m.setattr(images, "free_photographs", lambda: marked)
        fresh = load_free.__wrapped__  # not what is remembered
        assert fresh("train", 8, n=50)[:].max() == 0 and fresh("test", 8, n=50)[:].min() > 0.999


def test_images_pickle_and_index(celeba):
    import pickle

    found = load_celeba(celeba, "train", 8)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again[:], found[:]) and again.data == found.data and "CelebA, train" in repr(again)
    for i in ([2, 0], np.array([2, 0]), torch.tensor([2, 0])):
        assert torch.equal(found[i], torch.stack([found[2], found[0]]))
    with pytest.raises(ValueError, match=r"got \(3, 8\)"):
        Images(np.zeros((3, 8)), "flat")


def test_resize_and_crop():
    x = torch.rand(2, 4, 3, 20, 30, dtype=torch.float64, requires_grad=True)
    out = resize(x, (10, 15))
    assert out.shape == (2, 4, 3, 10, 15) and out.dtype == torch.float64
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert center_crop(x, 20).shape[-2:] == (20, 20)
    for bad in (0, 21):
        with pytest.raises(ValueError, match=f"side {bad}"):
            center_crop(x, bad)
    with pytest.raises(ValueError, match="size must be positive"):
        resize(x, 0)


def test_unknown_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ROBUST_GENERAL_DATA", raising=False)
    assert find_data() == "free"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_images(tmp_path / "nowhere")


def test_says_which_extra():
    """Without Pillow and scikit-image the module imports, and the error names the extra."""
    code = """
import sys
for name in ('PIL', 'skimage', 'sklearn'): sys.modules[name] = None
from robust_general.images import load_free, _read
for f in (load_free, lambda: _read('x.png', 'x.png')):
    try: f()
    except ImportError as e: assert 'robust_general[images]' in str(e), e
    else: raise SystemExit('no error')
"""
    subprocess.run([sys.executable, "-c", code], check=True)
