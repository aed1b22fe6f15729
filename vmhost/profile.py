"""The result of a sampling profiler: the Python stacks of VMs, and the time spent in each."""

import threading
from collections.abc import Iterator
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


class Frame(NamedTuple):
    """One frame: the function's qualified name, the file in its bundle, and the line (0: unknown)."""

    name: str
    file: str
    line: int


class Node(NamedTuple):
    """A frame below its callers' frames. `samples`, `wall_s`, `cpu_s`: with this frame as the innermost."""

    parent: int | None
    frame: Frame
    samples: int
    wall_s: float
    cpu_s: float


class Profile:
    """A tree of the sampled stacks, over all VMs of the process.

    `nodes`: a tuple of Node, parents before their children; those without a parent stand for a task's version and are
    named "task@version". `span_s`: its duration. `looks`: how often all VMs were sampled. `cost_s`: the CPU time of
    sampling. `unreadable`: stacks that could not be read; their time counts only for the task. `full`: there were more
    different stacks than are kept; the others count for their callers.
    """

    def __init__(self, taken: "dict[str, Any]") -> None:
        functions = taken["functions"]
        self.nodes: tuple[Node, ...] = tuple(
            Node(
                None if parent < 0 else parent,
                Frame(functions[function][1], functions[function][0], line),
                samples,
                wall_ns / 1e9,
                cpu_ns / 1e9,
            )
            for parent, function, line, samples, wall_ns, cpu_ns in taken["nodes"]
        )
        self.span_s: float = taken["span_ns"] / 1e9
        self.looks: int = taken["looks"]
        self.cost_s: float = taken["cost_ns"] / 1e9
        self.unreadable: int = taken["unreadable"]
        self.full: bool = taken["full"]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The sampled versions of tasks, as "task@version"."""
        return tuple(node.frame.name for node in self.nodes if node.parent is None)

    def stacks(self) -> Iterator[tuple[tuple[Frame, ...], Node]]:
        """Each sampled stack, the task first and the innermost frame last, with its node."""
        paths: list[tuple[Frame, ...]] = []
        for node in self.nodes:
            paths.append((*(() if node.parent is None else paths[node.parent]), node.frame))
            if node.samples:
                yield paths[-1], node

    def __repr__(self) -> str:
        samples = sum(node.samples for node in self.nodes)
        return f"<Profile of {self.span_s:.3g} s, {samples} samples of {len(self.tasks)} tasks>"


_under_way = threading.Lock()  # held while a profile is taken


class Profiling:
    """A running profile, on its own thread. A context manager, which ends it; `profile` is the result.
    RuntimeError if another profile is being taken in this process."""

    profile: Profile

    def __init__(self, native: "Any") -> None:
        self._native = native
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="vmhost-profile", daemon=True)
        if not _under_way.acquire(blocking=False):
            raise RuntimeError("another profile is being taken in this process; one at a time")
        try:
            self._thread.start()
        except BaseException:
            _under_way.release()
            raise

    def _run(self):
        try:
            self._native.run()
        except OSError as error:
            self._error = error
        finally:
            _under_way.release()

    def wait(self, timeout_s: float) -> None:
        """Waits until the time is over, or the profile has ended itself because it cannot be taken."""
        self._thread.join(timeout_s)

    def stop(self) -> Profile:
        """Ends it and returns the profile; may be repeated. OSError if the system does not let a process read its own
        memory with process_vm_readv(2)."""
        self._native.stop()
        self._thread.join()
        if self._error is not None:
            raise OSError(self._error.errno, f"stacks cannot be read on this system: {self._error.strerror}")
        if not hasattr(self, "profile"):
            self.profile = Profile(self._native.take())
        return self.profile

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: object, traceback: object) -> None:
        self.stop()
