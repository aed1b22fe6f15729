"""The agent as a process: runs until SIGTERM or Ctrl-C, and logs to stderr."""

import logging
import signal
import sys

from vmhost import ConfigurationError, VMHostError
from vmhost.bytecode import signing
from vmhost.deployment.device import settings
from vmhost.deployment.device.agent import Agent
from vmhost.stores import StoreError


def run(path, *, once=False):
    """Runs the agent for the file `path` (agent.yaml); `once`: for one round. False if the last round failed.
    VMHostError."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        read = settings.read(path)
        if read.tunnel is not None:
            raise ConfigurationError(f"{path}: tunnel: this program has none; run `vmhost agent`, or leave it out")
        agent = Agent(read)
    except signing.SigningError as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        raise VMHostError(str(error)) from error
    with agent:
        if once:
            agent.step()
            return not agent.failed
        signal.signal(signal.SIGTERM, lambda number, frame: agent.stop())
        try:
            agent.run()
        except KeyboardInterrupt:
            pass
    return True
