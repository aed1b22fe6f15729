"""The agent without vmhost's command line, to save memory: python -m vmhost.deployment.device AGENT.YAML"""

import sys

from vmhost import VMHostError
from vmhost.deployment.device import process

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m vmhost.deployment.device AGENT.YAML")
    try:
        process.run(sys.argv[1])
    except VMHostError as error:
        sys.exit(str(error))
