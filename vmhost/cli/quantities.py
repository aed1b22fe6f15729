"""Times, moments, sizes and addresses on the command line: types of options, checked before a command works."""

import click

from vmhost.bytecode import quantities


class Time(click.ParamType):
    """Seconds, of a text such as "500 ms"; a number without a unit is seconds. Ranges are in seconds."""

    name = "time"

    def __init__(self, at_least=0.0, at_most=float("inf")):
        self.at_least, self.at_most = at_least, at_most

    def convert(self, value, parameter, context):
        if not isinstance(value, str):
            return value
        text = value.strip()
        seconds = quantities.seconds(f"{text} s" if text[-1:].isdecimal() else text)
        if seconds is None:
            self.fail(f'expected a time such as "500 ms" or "2 s", got {value!r:.80}', parameter, context)
        if not self.at_least <= seconds <= self.at_most:
            bounds = f"at least {_shown(self.at_least)}"
            bounds += f", at most {_shown(self.at_most)}" if self.at_most < 1e300 else ""
            self.fail(f"expected {bounds}, got {value!r:.80}", parameter, context)
        return seconds


def _shown(seconds):
    return f"{seconds / 86400:g} d" if seconds >= 2 * 86400 else f"{seconds:g} s"


class Moment(click.ParamType):
    """Milliseconds since 1970, of a text such as 2026-11-25T10:30 or of that number."""

    name = "moment"

    def convert(self, value, parameter, context):
        from vmhost.pipeline.stored import moment_ms

        try:
            return moment_ms(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


class Size(click.ParamType):
    """Bytes, of a text such as "64 KiB"."""

    name = "size"

    def __init__(self, at_least, at_most):
        self.at_least, self.at_most = at_least, at_most

    def convert(self, value, parameter, context):
        if not isinstance(value, str):
            return value
        size = quantities.byte_count(value)
        if size is None or not self.at_least <= size <= self.at_most:
            bounds = f"{self.at_least >> 10} KiB to {self.at_most >> 10} KiB"
            self.fail(f'expected a size such as "32 KiB", from {bounds}, got {value!r:.80}', parameter, context)
        return size


class Address(click.ParamType):
    """The text of an address to serve pages on, such as 127.0.0.1:9464."""

    name = "address:port"

    def convert(self, value, parameter, context):
        from vmhost import ConfigurationError
        from vmhost.addresses import parsed

        try:
            parsed(value)
        except ConfigurationError as error:
            self.fail(str(error), parameter, context)
        return value
