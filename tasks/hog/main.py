"""Misbehaving task: keeps what it allocates until its memory limit stops it.

Takes `{"block_bytes": 65536}`: the size of what it asks for each time.
"""


def run(value):
    kept = []
    while True:
        kept.append(bytearray(value.get("block_bytes", 65536)))
