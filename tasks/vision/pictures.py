"""Preparation of pictures for a network: resized, cropped, normalized, transposed."""

import vmhost.engine.numpy as np

SIDE = 32  # pixels of the network's input
SHORTER = 36  # pixels of the shorter side before the middle is cropped
MEAN, DEVIATION = (0.62, 0.62, 0.61), (0.20, 0.21, 0.21)  # of the training pictures, red, green and blue, from 0 to 1


def prepare(picture):
    """The network's input, float32 (1, 3, 32, 32), for a picture of any size, (height, width, 3), uint8."""
    height, width = picture.shape[:2]
    scale = SHORTER / min(height, width)
    small = resize(picture.astype("float32"), max(SHORTER, round(height * scale)), max(SHORTER, round(width * scale)))
    middle = crop(small, SIDE)
    normal = (middle / 255 - np.asarray(MEAN, dtype="float32")) / np.asarray(DEVIATION, dtype="float32")
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


def resize(image, height, width):
    """The image (h, w, channels) in another size: bilinear, with averaging where it shrinks (as Pillow's BILINEAR)."""
    down, right = resampling(image.shape[0], height), resampling(image.shape[1], width)
    rows = np.reshape(down @ np.reshape(image, (image.shape[0], -1)), (height, image.shape[1], image.shape[2]))
    return right @ rows


def crop(image, side):
    """The middle of an image, side x side."""
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    return image[top : top + side, left : left + side]


def resampling(come, go):
    """A matrix (go, come), float32, that resamples `come` pixels to `go`; each row sums to 1."""
    reach = max(1.0, come / go)
    middles = (np.arange(go) + 0.5) * (come / go)
    weights = np.maximum(0, 1 - np.abs(np.arange(come) + 0.5 - middles[:, None]) / reach)
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")
