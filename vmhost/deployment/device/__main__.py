"""The agent without vmhost's command line, which costs memory: python -m vmhost.deployment.device AGENT.YAML"""

import logging
import signal
import sys

from vmhost.deployment.device import settings
from vmhost.deployment.device.agent import Agent


def main(path):
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with Agent(settings.read(path)) as agent:
        signal.signal(signal.SIGTERM, lambda number, frame: agent.stop())
        try:
            agent.run()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m vmhost.deployment.device AGENT.YAML")
    main(sys.argv[1])
