"""Images of 8x8 pixels as lists of 64 numbers: reading the reference file, and moving an image about."""

from typing import NamedTuple

SIDE = 8


class Reference(NamedTuple):
    """A known image: its 64 pixels, row by row, and the digit it shows."""

    pixels: list
    digit: int


def read_references(file):
    """One reference per line: 64 pixels as digits of base 17, a space, the label."""
    references = []
    for line in file:
        pixels, digit = line.split()
        references.append(Reference([float(int(pixel, 17)) for pixel in pixels], int(digit)))
    return references


def shifted(image, down, right):
    """The image moved by parts of a pixel, between -1 and 1 each way; what enters at the edge is blank."""
    moved = [0.0] * (SIDE * SIDE)
    for row_step, row_part in _steps(down):
        for column_step, column_part in _steps(right):
            part = row_part * column_part
            for row in range(max(row_step, 0), min(SIDE + row_step, SIDE)):
                for column in range(max(column_step, 0), min(SIDE + column_step, SIDE)):
                    moved[row * SIDE + column] += part * image[(row - row_step) * SIDE + column - column_step]
    return moved


def _steps(distance):
    """A distance as whole steps and the part that each has: half a pixel is half of no step and half of one."""
    if distance == 0:
        return [(0, 1.0)]
    step = 1 if distance > 0 else -1
    return [(0, 1.0 - abs(distance)), (step, abs(distance))] if abs(distance) < 1 else [(step, 1.0)]
