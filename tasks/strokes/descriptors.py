"""Descriptors of images of 8x8 pixels: the amount of edge in each part of the image, by direction.

After Dalal and Triggs, Histograms of Oriented Gradients for Human Detection (CVPR 2005), on images that are first
sheared upright by their second moments and enlarged to 16x16, both in one bilinear sampling."""

import vmhost.engine.numpy as np

SIDE = 8  # pixels of an input image
LARGE = 16  # pixels of the image whose edges are counted
CELL = 4  # pixels of a cell: 4 x 4 cells
DIRECTIONS = 12


def describe(images):
    """Unit-length descriptors (n, 192) of images (n, 8, 8), float32."""
    return histograms(enlarged(images, slants(images)))


def slants(images):
    """How many columns per row the strokes of each image lean to the right, from top to bottom, (n,)."""
    places = np.arange(SIDE, dtype="float32") - (SIDE - 1) / 2
    ink = np.maximum(images.sum(axis=(1, 2)), 1)
    by_row, by_column = images.sum(axis=2), images.sum(axis=1)
    down = places - ((by_row @ places) / ink)[:, None]  # of each row from the centre of mass
    right = places - ((by_column @ places) / ink)[:, None]
    together = ((images * down[:, :, None]).sum(axis=1) * right).sum(axis=1)
    return together / np.maximum((by_row * down * down).sum(axis=1), 1e-6)


def enlarged(images, slants):
    """The images sheared upright, (n, 16, 16): interpolated, blank outside."""
    count = images.shape[0]
    framed = np.zeros((count, SIDE + 2, SIDE + 2), dtype="float32")
    framed[:, 1:-1, 1:-1] = images
    places = (np.arange(LARGE, dtype="float32") + 0.5) * (SIDE / LARGE) + 0.5  # in pixels of the frame
    rows = places[:, None]
    columns = places + slants[:, None, None] * (rows - (SIDE + 1) / 2)
    columns = np.minimum(np.maximum(columns, 0), SIDE + 1)
    above, before = np.floor(rows), np.minimum(np.floor(columns), SIDE)
    down, right = rows - above, columns - before
    first = above.astype("int64") * (SIDE + 2) + before.astype("int64")
    first = first + np.arange(count)[:, None, None] * (SIDE + 2) ** 2
    pixels = np.ravel(framed)
    upper = pixels[first] * (1 - right) + pixels[first + 1] * right
    lower = pixels[first + (SIDE + 2)] * (1 - right) + pixels[first + (SIDE + 3)] * right
    return upper * (1 - down) + lower * down


def histograms(images):
    """The gradients' lengths of images (n, 16, 16) by cell and direction, (n, 192); each is split between its two
    nearest directions."""
    down, right = np.zeros_like(images), np.zeros_like(images)
    down[:, 1:-1] = images[:, 2:] - images[:, :-2]
    right[:, :, 1:-1] = images[:, :, 2:] - images[:, :, :-2]
    length = np.sqrt(down * down + right * right)
    direction = np.arctan2(down, right) * (DIRECTIONS / (2 * np.pi))
    lower = np.floor(direction)
    to_upper = length * (direction - lower)
    to_lower = length - to_upper
    lower = np.remainder(lower, DIRECTIONS)
    shares, cells = [], LARGE // CELL
    for number in range(DIRECTIONS):
        share = to_lower * (lower == number) + to_upper * (lower == (number - 1) % DIRECTIONS)
        shares.append(
            np.reshape(np.reshape(share, (-1, cells, CELL, cells, CELL)).sum(axis=(2, 4)), (-1, cells * cells))
        )
    found = np.sqrt(np.concatenate(shares, axis=1))
    return found / np.maximum(np.sqrt((found * found).sum(axis=1, keepdims=True)), 1e-6)
