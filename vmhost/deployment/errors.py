"""Errors of the deployment platform. A message says what, where, and what to do."""


class DeploymentError(Exception):
    """The base of these errors."""


class RefusedError(DeploymentError):
    """The request is not possible: a wrong name, a wrong plan, a state that does not allow it."""


class MissingError(DeploymentError):
    """There is no such repository, version, release or device."""


class TransferError(DeploymentError):
    """A download or a request failed; trying again later may help."""


class DamagedError(DeploymentError):
    """Bytes that are not what their digest says."""


class NotApprovedError(TransferError):
    """The device asked to join, and no admin has decided yet. Try again later."""
