"""The common part of `vmhost pipeline run` and `replay`: a pipeline from a pipeline.yaml or from arguments, and the
handling of Ctrl-C."""

import contextlib
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import click

from vmhost.cli import failures, keys

LOOK_S = 0.25  # how often a command checks whether it is done, and for Ctrl-C


@dataclass
class Plan:
    """The arguments of a pipeline: those of Pipeline, SourceSettings, and whether visits stay open at the end."""

    folder: Path
    bundles: tuple
    options: dict = field(default_factory=dict)
    sources: tuple = ()
    keep_visits: bool = False
    tunnel: object = None  # TunnelSettings

    def open(self, **more):
        from vmhost.pipeline.pipeline import Pipeline
        from vmhost.stores import StoreInUseError

        try:
            return Pipeline(self.folder, self.bundles, **self.options, **more)
        except StoreInUseError as error:
            raise failures.Failure(
                f"{self.folder}: {_at_work(self.folder)} already; end it first, or choose another folder",
                failures.HOST_FAILED,
                "StoreInUseError",
            ) from error


def _at_work(folder):
    """The process that has a folder's store open, in words."""
    from vmhost.pipeline.control import ControlError, NotRunningError, ask

    try:
        return f"a pipeline is running there (process {ask(folder, 'status')['pid']})"
    except NotRunningError, ControlError:
        return "another process has its store open for writing"


def options(function):
    """Adds the options for keys and a pipeline.yaml."""
    for option in (
        click.option(
            "--config", type=click.Path(path_type=Path), help="A pipeline.yaml, instead of FOLDER and BUNDLES."
        ),
        click.option("--allow-unsigned", is_flag=True, help="Load bundles that nobody signed."),
        click.option(
            "--trust",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Public keys to trust. [default: vmhost keys trust]",
        ),
    ):
        function = option(function)
    return function


def plan(places, config, trust, allow_unsigned):
    """The Plan for a command line: `places` are FOLDER BUNDLE..., or one pipeline.yaml."""
    if config is None and places and places[0].suffix in (".yaml", ".yml"):
        config, places = places[0], places[1:]
    if config is None:
        if len(places) < 2:
            missing = "BUNDLE" if places else "FOLDER"
            raise click.UsageError(f"Missing argument '{missing}...': a folder and bundles, or a pipeline.yaml.")
        for bundle in places[1:]:
            if not bundle.exists():
                raise failures.Failure(f"{bundle}: no such file{failures.did_you_mean(bundle)}")
        chosen = {"trust": keys.trust_store(trust), "allow_unsigned": allow_unsigned}
        return Plan(places[0], tuple(places[1:]), chosen)
    if places:
        raise failures.Failure(f"{config} names folder and bundles; leave {places[0]} out, or leave the file out")
    from vmhost.pipeline.configuration import read_pipeline_yaml

    if not config.exists():
        raise failures.Failure(f"{config}: no such file{failures.did_you_mean(config)}")
    found = read_pipeline_yaml(config)
    chosen = dict(found.options)
    if trust or "trust" not in chosen:
        chosen["trust"] = keys.trust_store(trust)
    if allow_unsigned:
        chosen["allow_unsigned"] = True
    return Plan(found.folder, found.bundles, chosen, found.sources, found.keep_visits, found.tunnel)


class Interrupts:
    """Handles Ctrl-C and SIGTERM: the first asks for an orderly end (`asked` is its number), the next Ctrl-C raises
    KeyboardInterrupt as soon as that is safe."""

    def __init__(self):
        self.asked = None
        self._before = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *error):
        from vmhost.pipeline import interrupts

        for number, handler in self._before.items():
            signal.signal(number, handler)
        interrupts.check()

    def _heard(self, number, frame):
        from vmhost.pipeline import interrupts

        if self.asked is not None and number == signal.SIGINT:
            interrupts.heard(number, frame)
        else:
            self.asked = number

    @property
    def exit_code(self):
        """The exit code of an orderly end: success for a service that was told to end."""
        return failures.INTERRUPTED if self.asked == signal.SIGINT else failures.DONE


@contextlib.contextmanager
def ended(pipeline):
    """Closes the pipeline at the end of the block, without waiting if it was not closed before."""
    try:
        yield
    finally:
        pipeline.close(drain=False)


def close(pipeline):
    """Closes the pipeline; if the store cannot be written, the error says how many events are missing in it."""
    from vmhost.pipeline.stored import StoredPipeline
    from vmhost.stores import StoreError

    try:
        pipeline.close()
    except StoreError as error:
        try:
            with StoredPipeline(pipeline.folder) as stored:
                missing = pipeline.final["position"] - stored.status()["events"]["position"]
        except StoreError, TypeError:
            missing = 0
        lost = f"; {missing:,} events that were taken last are not in the store: give them again" if missing > 0 else ""
        raise failures.Failure(f"{error}{lost}", failures.HOST_FAILED, type(error).__name__) from error


def drain(output, pipeline, signals, live):
    """Waits for open calls. KeyboardInterrupt at Ctrl-C, if an end was asked for before."""
    announced = False
    while not pipeline.drain(LOOK_S):
        if pipeline.store_error is not None:
            return  # results cannot be stored: the next run makes the calls
        if signals.asked and not announced:
            announced = True
            calls = sum(task["unfinished"] for task in pipeline.statistics()["tasks"].values())
            live.note = f"{calls:,} calls run to their end; Ctrl-C again leaves them to the next run"
            output.remark(live.note)
        live.show()
