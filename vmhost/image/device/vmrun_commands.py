"""The command line of a device host.

`run` calls a bundle's entry point once and prints the result as JSON, like `vmhost run`; `serve` serves a folder of
bundles, like `vmhost serve`. Exit codes are those of vmhost/lines/exit_codes.py. `check` verifies the image's files
against its manifest, and that there is no compiler."""

import logging
import signal
import sys

import _vmrun

import vmhost
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.signing import TrustStore
from vmhost.limits import seconds
from vmhost.lines import exit_codes, json_values, stdout
from vmhost.runtime.codec import PARTS

USAGE = """\
usage: vmrun run BUNDLE [--input FILE|JSON|-] [--timeout TIME] [--trust PATH]... [--allow-unsigned]
       vmrun serve FOLDER [--trust PATH]... [--allow-unsigned]
       vmrun agent AGENT.YAML [--once]
       vmrun check
       vmrun --version
"""


_ONE_CALL = vmhost.Policy(warm=1, max_warm=1, replace_warm=False)


class UsageError(Exception):
    """The command line or the input is wrong; the text says how."""


def main(arguments):
    """Runs the command line `arguments` and returns the exit code."""
    command = arguments[0] if arguments and arguments[1:2] not in (["--help"], ["-h"]) else "--help"
    commands = {
        "run": run,
        "serve": serve,
        "agent": agent,
        "check": check,
        "--version": version,
        "--help": usage,
        "-h": usage,
    }
    try:
        if command not in commands:
            raise UsageError(f"{command}: no such command\n{USAGE.rstrip()}")
        return commands[command](arguments[1:])
    except UsageError as error:
        return _fail(error, exit_codes.WRONG_INPUT)
    except stdout.OutputError as error:
        stdout.abandon()
        return _fail(error, exit_codes.HOST_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", exit_codes.INTERRUPTED)
    except BrokenPipeError:
        stdout.abandon()
        return exit_codes.PIPE_CLOSED
    except (vmhost.VMHostError, BytecodeError) as error:
        frames = getattr(error, "guest_traceback", None)
        if frames:
            print(frames.rstrip(), file=sys.stderr)
        return _fail(f"{error}{_advice(error)}", exit_codes.exit_code(error))


def run(arguments):
    """vmrun run BUNDLE …"""
    options, (path,) = _options(
        arguments, {"--input": 1, "--timeout": 1, "--trust": 1, "--allow-unsigned": 0}, ["BUNDLE"]
    )
    try:
        value = json_values.read(options["--input"][-1] if options["--input"] else None)
    except ValueError as error:
        raise UsageError(error) from error
    timeout_s = None
    if options["--timeout"]:
        text = options["--timeout"][-1]
        try:
            text = float(text)
        except ValueError:
            pass
        timeout_s = seconds(text, "--timeout")
    _show_guests()
    with vmhost.Host(
        trust=_trust(options["--trust"]),
        allow_unsigned=bool(options["--allow-unsigned"]),
        policy=_ONE_CALL,
        types=PARTS,
    ) as host:
        result = host.load(path).submit(value, timeout_s=timeout_s).result()
        try:
            plain = json_values.to_plain(result)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}: the task returned a value that JSON cannot express: {error}") from error
        stdout.write_json(plain)
    return exit_codes.DONE


def serve(arguments):
    """vmrun serve FOLDER …"""
    from vmhost.lines import requests
    from vmhost.lines.folder_server import GRACE_S, FolderServer
    from vmhost.lines.signals import Signals

    options, (folder,) = _options(arguments, {"--trust": 1, "--allow-unsigned": 0}, ["FOLDER"])
    _show_guests()
    policy = vmhost.Policy(warm=0, max_warm=0)  # a device has memory only for VMs in use
    trust, unsigned = _trust(options["--trust"]), bool(options["--allow-unsigned"])
    with (
        Signals(GRACE_S) as signals,
        vmhost.Host(trust=trust, allow_unsigned=unsigned, policy=policy, types=PARTS) as host,
    ):
        server = FolderServer(host, folder, sys.stdout)
        ended_by = server.run(requests.stdin_descriptor(), signals, when_idle=_vmrun.give_back_memory)
    server.check()
    return exit_codes.INTERRUPTED if ended_by == signal.SIGINT else exit_codes.DONE


def agent(arguments):
    """vmrun agent AGENT.YAML …"""
    options, (path,) = _options(arguments, {"--once": 0}, ["AGENT.YAML"])
    try:
        from vmhost.deployment.device import process
    except ModuleNotFoundError as error:
        if error.name != "vmhost.deployment":
            raise
        raise UsageError("this image has no agent; make it again with `vmhost image OUT --with-agent`") from None
    return exit_codes.DONE if process.run(path, once=bool(options["--once"])) else exit_codes.HOST_FAILED


def check(arguments):
    """vmrun check"""
    _options(arguments, {}, [])
    right = _vmrun.check_files()
    try:
        compile("1", "text", "eval")
    except RuntimeError:
        stdout.write("no compiler: as it should be")
    else:
        right = False
        print("vmrun: there is a compiler in this image, and there must be none", file=sys.stderr)
    if right:
        stdout.write("the image's files are as its manifest says")
    return exit_codes.DONE if right else exit_codes.UNHEALTHY


def version(arguments):
    """vmrun --version"""
    _options(arguments, {}, [])
    stdout.write(_vmrun.manifest.rstrip())
    return exit_codes.DONE


def usage(arguments):
    """vmrun --help"""
    stdout.write(USAGE.rstrip())
    return exit_codes.DONE


def _options(arguments, known, wanted):
    """({option: values}, operands) of a command line; UsageError for unknown options, or operands that do not fit
    `wanted`."""
    found, operands, rest = {name: [] for name in known}, [], list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if not argument.startswith("--") or argument == "--":
            operands.append(argument)
        elif name not in known or (equals and not known[name]):
            raise UsageError(f"{argument}: no such option\n{USAGE.rstrip()}")
        elif not known[name]:
            found[name].append(True)
        elif equals or rest:
            found[name].append(value if equals else rest.pop(0))
        else:
            raise UsageError(f"{name}: expected a value after it")
    if len(operands) != len(wanted):
        raise UsageError(
            f"expected {' '.join(wanted) or 'no arguments'}, got {' '.join(operands) or 'none'}\n{USAGE.rstrip()}"
        )
    return found, operands


def _trust(paths):
    """The keys in the files and folders `paths`; without any, no key is trusted."""
    if not paths:
        return None
    keys = {}
    for path in paths:
        keys |= TrustStore.load(path).keys
    return TrustStore(keys)


def _show_guests():
    """Lets lines that tasks print or log appear on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("vmhost")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _advice(error):
    """Advice where a task needs a module of the standard library that this image lacks."""
    if getattr(error, "type_name", None) != "ModuleNotFoundError":
        return ""
    name = error.guest_message.partition("'")[2].rpartition("'")[0]
    if f"{name}.".startswith("vmhost.engine."):
        return (
            "\nthe tensor engine is not in this image; make it again with `vmhost image OUT --bundle BUNDLE`, or with"
            " `--with-engine`"
        )
    if name.partition(".")[0] not in sys.stdlib_module_names:
        return ""
    if name in next(line.split()[1:] for line in _vmrun.manifest.splitlines() if line.startswith("absent ")):
        return (
            f"\nno image has {name}: the static library that images are linked from does not hold it; run this bundle"
            " on a full host, or write the task without it"
        )
    return (
        f"\n{name} is not in this image; make it again with `vmhost image OUT --bundle BUNDLE`, which takes in what the"
        f" bundle imports, or with `--module {name}`"
    )


def _fail(error, code):
    print(f"vmrun: {error}", file=sys.stderr)
    return code
