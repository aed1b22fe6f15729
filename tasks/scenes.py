"""Synthetic pictures that look like photographs: real handwriting; paper, ink, light and noise are generated.

A digit of 8x8 pixels is enlarged, rotated and written in coloured ink on coloured paper, somewhere near the middle of
the picture; light falls from one side, and the sensor adds noise. The same seed gives the same pictures. `cases.py`
uses them for tasks/vision; `training/vision.py` trains on others."""

import vmhost.engine.numpy as np

LEAST, MOST = 40, 88  # pixels per side


def picture(image, random):
    """A picture (height, width, 3), uint8, of the digit `image` (64 ink values from 0 to 16), drawn by a Generator of
    vmhost.engine.numpy."""
    height, width = (int(side) for side in random.integers(LEAST, MOST, 2))
    size = min(height, width) * random.uniform(0.75, 0.95)
    middle = np.asarray([height / 2, width / 2]) + random.uniform(-0.05, 0.05, 2) * size
    down, right = np.arange(height)[:, None] + 0.5 - middle[0], np.arange(width) + 0.5 - middle[1]
    turn = random.normal(0, 0.12)
    rows = (np.cos(turn) * down - np.sin(turn) * right) * (8 / size) + 3.5
    columns = (np.sin(turn) * down + np.cos(turn) * right) * (8 / size) + 3.5
    written = _between(np.reshape(np.asarray(image, dtype="float64"), (8, 8)) / 16, rows, columns)
    paper, ink = random.uniform(150, 245, 3), random.uniform(10, 90, 3)
    light = random.uniform(-0.25, 0.25, 2)
    brightness = 1 + light[0] * down / height + light[1] * right / width
    colours = (paper + (ink - paper) * written[:, :, None]) * brightness[:, :, None]
    noise = random.normal(0, random.uniform(2, 12), (height, width, 3))
    return np.clip(colours + noise, 0, 255).astype("uint8")


def _between(image, rows, columns):
    """The image (8, 8) interpolated at these positions, 0 outside."""
    framed = np.zeros((11, 11))
    framed[1:9, 1:9] = image
    rows, columns = np.clip(rows + 1, 0, 9), np.clip(columns + 1, 0, 9)
    above, before = np.floor(rows).astype("int64"), np.floor(columns).astype("int64")
    low, late = rows - above, columns - before
    return (framed[above, before] * (1 - late) + framed[above, before + 1] * late) * (1 - low) + (
        framed[above + 1, before] * (1 - late) + framed[above + 1, before + 1] * late
    ) * low
