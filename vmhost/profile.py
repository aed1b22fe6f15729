"""What a sampling profiler saw of the VMs: the stacks of their Python, and the time that was spent in each."""

import errno
import threading
from collections.abc import Iterator
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


class Frame(NamedTuple):
    """One frame: the function's name as Python has it, the file in its bundle, and the line it was at (0: unknown)."""

    name: str
    file: str
    line: int


class Node(NamedTuple):
    """A frame below the frames that called it. `samples`, `wall_s`, `cpu_s`: with this frame as the innermost."""

    parent: int | None
    frame: Frame
    samples: int
    wall_s: float
    cpu_s: float


class Profile:
    """A tree of the stacks that were met, over all VMs of the process.

    `nodes`: a tuple of Node, parents before their children; those without a parent stand for a task's version and are
    named "task@version". `span_s`: how long it took. `looks`: how often all VMs were looked at. `cost_s`: the CPU time
    that this took. `unreadable`: stacks that could not be read; their time counts for the task alone. `full`: there
    were more different stacks than are kept, and the rest counts for their callers.
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
        """The versions of tasks that were met, as "task@version"."""
        return tuple(node.frame.name for node in self.nodes if node.parent is None)

    def stacks(self) -> Iterator[tuple[tuple[Frame, ...], Node]]:
        """Each stack that was met, the task first and the innermost frame last, with its node."""
        paths: list[tuple[Frame, ...]] = []
        for node in self.nodes:
            paths.append((*(() if node.parent is None else paths[node.parent]), node.frame))
            if node.samples:
                yield paths[-1], node

    def __repr__(self) -> str:
        samples = sum(node.samples for node in self.nodes)
        return f"<Profile of {self.span_s:.3g} s, {samples} samples of {len(self.tasks)} tasks>"


class Profiling:
    """A profile that is being taken, on a thread of its own. A context manager, which ends it; then it is `profile`."""

    profile: Profile

    def __init__(self, native: "Any") -> None:
        self._native = native
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="vmhost-profile", daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._native.run()
        except OSError as error:
            self._error = error

    def wait(self, timeout_s: float) -> None:
        """Until the time is over, or the profile has ended by itself, as it cannot be taken."""
        self._thread.join(timeout_s)

    def stop(self) -> Profile:
        """Ends it, and gives the profile; again the same one. RuntimeError when another one was under way in this
        process; OSError where the system does not let a process read its own memory by process_vm_readv(2)."""
        self._native.stop()
        self._thread.join()
        if self._error is not None:
            if self._error.errno == errno.EBUSY:
                raise RuntimeError("another profile is being taken in this process; one at a time") from None
            raise OSError(self._error.errno, f"stacks cannot be read on this system: {self._error.strerror}")
        if not hasattr(self, "profile"):
            self.profile = Profile(self._native.take())
        return self.profile

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: object, traceback: object) -> None:
        self.stop()
