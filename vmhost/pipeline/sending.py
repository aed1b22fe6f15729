"""The tunnel of a pipeline (`tunnel:` in pipeline.yaml): it sends the outbox in the pipeline's store, and lets tasks
use channels. The only file of this room that knows vmhost.tunnel."""

from vmhost.settings.tokens import read_token
from vmhost.tunnel import Device
from vmhost.tunnel.host_functions import TaskChannels

_FILES = (("certificate", "pem"), ("key", "key"))


class Sending:
    """`settings`: TunnelSettings. `functions`: for the host, whose calls wait until `start`. ConfigurationError."""

    def __init__(self, settings):
        self._settings = settings
        self._channels = TaskChannels(settings.channels)
        self.functions = self._channels.functions if settings.channels else {}

    def start(self, database):
        """A Device that sends the outbox of `database`; the caller closes it."""
        settings = self._settings
        how = {"batch_ms": settings.batch_ms}
        if settings.keys is not None:
            how["ca"] = settings.keys / "ca.pem"
        if settings.device is not None:
            how |= {name: settings.keys / f"{settings.device}.{end}" for name, end in _FILES}
        if settings.token_file is not None:
            how["token"] = lambda: read_token(settings.token_file)
        device = Device(settings.to, database, **how)
        device.start()
        self._channels.device = device
        return device
