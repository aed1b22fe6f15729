"""Images of 8x8 pixels as rows of 64 numbers: reading the reference file, and moving an image about."""

import vmhost.engine.numpy as np

SIDE = 8


def read_references(file):
    """The known images, (n, 64), and a list of the digits that they show.

    One per line: 64 pixels as digits of base 17, a space, the label.
    """
    pixels, digits = zip(*(line.split() for line in file))
    return np.asarray([[int(pixel, 17) for pixel in row] for row in pixels], dtype="float64"), [
        int(one) for one in digits
    ]


def shifts(steps):
    """A matrix (len(steps)**2 * 64, 64) that moves an image in all ways at once: by each of `steps` down and each to
    the right.

    Steps are parts of a pixel, between -1 and 1; what enters at the edge is blank.
    """
    along = np.asarray([[[_part(step, to - come) for come in range(SIDE)] for to in range(SIDE)] for step in steps])
    down, right = along[:, None, :, None, :, None], along[None, :, None, :, None, :]
    return np.reshape(down * right, (len(steps) ** 2 * SIDE * SIDE, SIDE * SIDE))


def _part(step, distance):
    """How much of a pixel ends up `distance` pixels on when an image is moved by `step`: half a pixel goes half
    nowhere, half one on."""
    return max(0.0, 1.0 - abs(step - distance))
