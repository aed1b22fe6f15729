"""Misbehaving task: loops for ever, and for a while swallows every exception that should end it.

Takes `{"swallow": 3}`: how many exceptions it catches before it lets one through. The host stops it at its wall time.
"""


def run(value):
    swallow = value.get("swallow", 0)
    while True:
        try:
            while True:
                pass
        except BaseException:
            if swallow == 0:
                raise
            swallow -= 1
