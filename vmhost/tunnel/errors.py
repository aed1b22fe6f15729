"""Errors of the tunnel. Messages say what happened, where, and what to do."""

from vmhost import ConfigurationError, VMHostError


class TunnelError(VMHostError):
    """The base of the tunnel's errors."""


class TunnelConfigurationError(TunnelError, ConfigurationError):
    """An address, a certificate, a limit or a handler that cannot be used."""


class ProtocolError(TunnelError):
    """The other end violated the protocol; the connection is closed."""


class MessageTooLargeError(TunnelError):
    """The other end never takes a message of this size."""


class OfflineError(TunnelError):
    """There is no connection, or it was cut before the answer came."""


class NoAnswerError(TunnelError, TimeoutError):
    """No answer came in time."""


class AnswerError(TunnelError):
    """The other end could not answer; the message is from there."""


class OutboxFullError(TunnelError):
    """The outbox of a channel is full, and its rule is to refuse new messages."""


class StreamBrokenError(TunnelError):
    """A stream ended before its end: the connection was cut, or the other end gave up."""


class ConsumerError(TunnelError):
    """A consumer failed for messages; the store did not."""


class MessageRefused(Exception):
    """Raised by a consumer that will never take a message; the message is stored in `tunnel_refused`."""
