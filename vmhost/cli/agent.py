"""`vmhost agent`: the device's side of the deployment platform, as a process that runs until it is stopped."""

import contextlib
import logging
import signal
import sys
from pathlib import Path

import click

from vmhost.cli import failures

_CONNECT_S = 15.0


@click.command(short_help="Keep this device's tasks in step with the platform.")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), metavar="AGENT.YAML")
@click.option("--once", is_flag=True, help="One round only: status 0 if the platform answered.")
@failures.command
def command(output, path, once):
    """Ask the platform in AGENT.YAML what should run here, pull it, prove it, run it, report; until Ctrl-C."""
    from vmhost.bytecode.errors import SigningError
    from vmhost.deployment.device import settings
    from vmhost.deployment.device.agent import Agent
    from vmhost.deployment.device.tunnel_transfers import TunnelTransfers
    from vmhost.deployment.tunnel_channel import CHANNEL
    from vmhost.stores import StoreError

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    read = settings.read(path)
    with contextlib.ExitStack() as stack:
        try:
            transfers = TunnelTransfers(read.platform, certificates=read.certificates) if read.tunnel else None
            agent = stack.enter_context(Agent(read, transfers=transfers))
            if transfers is not None:
                transfers.device = _tunnel(read)
                transfers.device.on(CHANNEL, lambda message: agent.hint())
                if read.debugging.consent == "ask" and not once:
                    _answer_debugging(stack, agent, transfers.device)
                stack.enter_context(transfers.device)
        except (StoreError, SigningError) as error:
            raise failures.Failure(str(error), failures.HOST_FAILED, type(error).__name__) from error
        if once:
            if transfers is not None:
                transfers.device.wait_connected(_CONNECT_S)
            agent.step()
            output.document({"current": agent.store.current()})
            return failures.HOST_FAILED if agent.failed else failures.DONE
        signal.signal(signal.SIGTERM, lambda number, frame: agent.stop())
        output.document({"device": agent.settings.device, "platform": agent.settings.platform})
        output.line(f"{agent.settings.device}: asking {agent.settings.platform}; Ctrl-C ends it")
        try:
            agent.run()
        except KeyboardInterrupt:
            output.remark("ended; the tasks' state is kept")
    return failures.DONE


def _answer_debugging(stack, agent, device):
    """Lets the device answer debugging requests that the platform relays; consent is asked for here."""
    import json

    from vmhost.deployment.tunnel_channel import DEBUG_CHANNEL
    from vmhost.operations.debugging import Debugging

    debugging = stack.enter_context(Debugging(agent.host, names=(agent.settings.device,)))

    def answer(text):
        try:
            request = json.loads(text)
        except ValueError, TypeError, RecursionError:
            request = None
        return json.dumps(debugging.answer(request, f"the tunnel from {agent.settings.platform}"))

    device.answer(DEBUG_CHANNEL, answer)


def _tunnel(settings):
    """A Device that is not started yet."""
    from vmhost.tunnel import Device

    keys, name = settings.tunnel["keys"], settings.device
    return Device(
        settings.tunnel["address"],
        settings.folder / "tunnel.sqlite",
        ca=keys / "ca.pem",
        certificate=keys / f"{name}.pem",
        key=keys / f"{name}.key",
    )
