"""Images of 8x8 pixels as rows of 64 numbers: reading the reference file, and shifting an image."""

import vmhost.engine.numpy as np

SIDE = 8


def read_references(file):
    """The known images, (n, 64), and a list of their digits.

    One per line: 64 pixels as digits of base 17, a space, the label.
    """
    pixels, digits = zip(*(line.split() for line in file))
    return np.asarray([[int(pixel, 17) for pixel in row] for row in pixels], dtype="float64"), [
        int(one) for one in digits
    ]


def shifts(steps):
    """A matrix (len(steps)**2 * 64, 64) that shifts an image in all ways at once: by each of `steps` down and each to
    the right.

    Steps are in pixels, between -1 and 1, fractions included; what enters at the edge is blank.
    """
    along = np.asarray([[[_part(step, to - come) for come in range(SIDE)] for to in range(SIDE)] for step in steps])
    down, right = along[:, None, :, None, :, None], along[None, :, None, :, None, :]
    return np.reshape(down * right, (len(steps) ** 2 * SIDE * SIDE, SIDE * SIDE))


def _part(step, distance):
    """The weight with which a shift by `step` moves a pixel by `distance`: a shift by half a pixel gives half to
    distance 0 and half to distance 1."""
    return max(0.0, 1.0 - abs(step - distance))
