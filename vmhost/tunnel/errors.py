"""Errors of the tunnel: what, where, what to do."""

from vmhost import ConfigurationError, VMHostError


class TunnelError(VMHostError):
    """The base of the tunnel's errors."""


class TunnelConfigurationError(TunnelError, ConfigurationError):
    """An address, a certificate, a limit or a handler that cannot be used."""


class ProtocolError(TunnelError):
    """The other end sent what the protocol does not allow; the connection is closed."""


class MessageTooLargeError(TunnelError):
    """The other end takes no message of this size, ever."""


class OfflineError(TunnelError):
    """There is no connection, or it was cut before the answer came."""


class NoAnswerError(TunnelError, TimeoutError):
    """No answer came in time."""


class AnswerError(TunnelError):
    """The other end could not answer; the message is its."""


class OutboxFullError(TunnelError):
    """The outbox of a channel is full, and its rule is to refuse."""


class StreamBrokenError(TunnelError):
    """A stream ended before its end: the connection was cut, or the other end gave up."""


class MessageRefused(Exception):
    """A consumer raises it about a message that it will never take; the message goes to the refused ones."""
