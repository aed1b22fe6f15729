"""Networks on a GPU: the result of `vmhost.engine.models.opened(…, device="cuda")`."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import vmhost.engine.numpy as np
from vmhost.engine import _array
from vmhost.engine.cuda import programs
from vmhost.engine.cuda.files import ModelFile
from vmhost.engine.cuda.library import check, gpu, library
from vmhost.engine.cuda.programs import UnsupportedError
from vmhost.engine.model import Model

__all__ = ["CudaModel", "Options", "UnsupportedError"]
_PLANS = 8


@dataclass(frozen=True)
class Options:
    """How a network runs on a GPU; each option can be switched off.

    streams: it has a stream of its own; otherwise all such networks of the GPU share one.
    merged_copies: all inputs of a call are one copy; otherwise one copy each.
    copy_stream: copies to the GPU run on a stream that all networks share, separate from the networks' own.
    graphs: sizes passed to `warmup` get a captured graph.
    fused: bias and activation are part of products, elementwise steps are merged, concatenations are one launch."""

    streams: bool = True
    merged_copies: bool = True
    copy_stream: bool = False
    graphs: bool = True
    fused: bool = True


class CudaModel(Model):
    """A Model with its weights and values in GPU memory. Calls are serialized; outputs are arrays in host memory.

    The sizes passed to `warmup` get a captured graph; other sizes are launched step by step. Plans for the last eight
    sizes are cached. DeviceError: no GPU, no library, or an error of CUDA. MemoryError: the GPU's memory, or its limit,
    is exhausted.
    """

    __slots__ = ("_bound", "_file", "_graphed", "_lock", "_plans", "_stream", "_weights", "device", "options")

    def __init__(self, name, data, cpu, *, device="cuda", memory=0, options=None, like=None):
        """`cpu`: the Model of the same bytes, which has validated them and knows inputs and outputs."""
        self.device = device if hasattr(device, "handle") else gpu(device, memory=memory)
        self.name, self.inputs, self.outputs = name, cpu.inputs, cpu.outputs
        self._continued, self._parts, self._texts, self._session = (), None, None, None
        self.options = Options() if options is None else options
        if cpu.parts != 1:
            raise UnsupportedError(f"{name}: the GPU runs models of one part, this one has {cpu.parts}")
        self._file = ModelFile(data)
        if self._file.notes:
            raise UnsupportedError(
                f"{name}: the GPU runs no models with texts, labels or lists: open it with device='cpu'"
            )
        ffi, lib = library()
        try:
            programs.build(self._file, dict.fromkeys(self._file.opens, 2))  # reports missing operators now
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error
        except ValueError:  # it does not work at these sizes: calls report that at theirs
            pass
        out = ffi.new("vme_cuda_weights **")
        weights = self._file.weights
        check(lib.vme_cuda_weights_new(self.device.handle, ffi.from_buffer(weights), len(weights), out))
        self._weights = ffi.gc(out[0], lib.vme_cuda_weights_unref)
        self._stream = self.device.stream(shared=not self.options.streams)
        self._plans, self._graphed, self._bound = OrderedDict(), set(), {}
        self._lock = threading.Lock()
        if like is not None:
            self._bound = dict(like._bound)
            self._graphed = set(like._graphed)
            for key in list(like._plans):
                self._plan(*key)

    # ---- plans
    def _plan(self, sizes, bound=None):
        """The plan for the sizes, (name, size) pairs. `bound`: for lookups (room for ids as a power of two, whether
        each has weights)."""
        key = sizes, bound
        plan = self._plans.get(key)
        if plan is None:
            program = programs.build(self._file, dict(sizes), fused=self.options.fused)
            plan = self._plans[key] = _Plan(self, program, bound, self.options.graphs and sizes in self._graphed)
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return plan

    def _sizes_of(self, arrays):
        found = {}
        for port, array in zip(self.inputs, arrays):
            if array is not None:
                found |= {name: size for name, size in zip(port.shape, array.shape) if isinstance(name, str)}
        return tuple((name, found[name]) for name in self._file.opens)

    def _run(self, arrays, out=None):
        with self._lock:
            return self._plan(self._sizes_of(arrays)).run(arrays, out)

    def warmup(self, sizes=None):
        """As Model.warmup; these sizes have a captured graph afterwards."""
        shapes = self.shapes_at(sizes)
        arrays = tuple(_array.zeros(shapes[port.name], port.dtype) for port in self.inputs)
        with self._lock:
            sizes = self._sizes_of(arrays)
            self._warm(sizes)
            if not self._bound:
                self._plan(sizes).run(arrays, None)

    def _warm(self, sizes):
        """Gives these sizes a graph from now on; plans without one are rebuilt."""
        if sizes not in self._graphed:
            self._graphed.add(sizes)
            for key in [key for key in self._plans if key[0] == sizes]:
                del self._plans[key]

    def staging(self, sizes=None):
        """A Staging at these sizes: arrays over the pinned memory from which inputs are copied to the GPU. A call with
        it copies nothing on the host; the contents of its arrays stay."""
        shapes = self.shapes_at(sizes)
        with self._lock:
            numbers = {one: size for port in self.inputs for one, size in zip(port.shape, shapes[port.name])}
            plan = self._plan(tuple((name, numbers[name]) for name in self._file.opens))
            arrays = {port.name: plan.staged(number) for number, port in enumerate(self.inputs)}
            return Staging(self, plan, arrays)

    def __call__(self, inputs, out=None):
        """As Model's; for a Staging of this network nothing is copied or checked."""
        if type(inputs) is Staging and inputs.model is self:
            with self._lock:
                return self._named(inputs.plan.run(None, self._targets(out)))
        return super().__call__(inputs, out)

    # ---- lookups in tables on the same GPU
    def bind(self, tables):
        """Feeds inputs from tables in the memory of the same GPU: {input's name: (CudaTable, number of the combiner,
        default id or -1)}. Such a network is called by `run_bags`."""
        for name, (table, *_) in tables.items():
            port = next((port for port in self.inputs if port.name == name), None)
            if port is None or len(port.shape) != 2 or port.shape[1] != table.dim:
                raise ValueError(f"{self.name}: no input {name!r} of rows of {table.dim} numbers")
            if table.device is not self.device:
                raise ValueError(f"{self.name}: the table {table.name!r} is not on the network's GPU")
        with self._lock:
            self._bound = dict(tables)
            self._plans.clear()

    def run_bags(self, inputs, bags):
        """The outputs by name; bound inputs get the results of their bags: {input's name: (ids, offsets, weights or
        None)}, int64 and float32."""
        count = {len(offsets) - 1 for _, offsets, _ in bags.values()}
        if set(bags) != set(self._bound) or len(count) != 1 or min(count) < 1:
            raise ValueError(f"{self.name}: expected bags of {', '.join(self._bound)}, as many of each")
        [count] = count
        arrays, sizes = [], {}
        for port in self.inputs:
            if port.name in bags:
                sizes |= {one: count for one in port.shape if isinstance(one, str)}
        for port in self.inputs:
            if port.name in bags:
                arrays.append(None)
                continue
            if port.name not in inputs:
                raise ValueError(f"{self.name}: input {port.name!r} is missing; expected {self._names()}")
            array = self._array(port, inputs[port.name])
            if array.dtype != port.dtype or not self._fits(port, array.shape, sizes):
                raise ValueError(
                    f"{self.name}: input {port.name!r}: expected {port.dtype} of shape {port.shape} at {count} bags,"
                    f" got {array.dtype} of {array.shape}"
                )
            arrays.append(array)
        if unknown := inputs.keys() - {port.name for port in self.inputs if port.name not in bags}:
            raise ValueError(f"{self.name}: there is no input {min(unknown)!r} beside the bags")
        # room in powers of two, so that a plan serves calls with similar numbers of ids
        given = [bags[name] for name in self._bound]
        bits = max(sum(len(ids) for ids, *_ in given) - 1, 0).bit_length()
        bound = bits, tuple(weights is not None for *_, weights in given)
        with self._lock:
            plan = self._plan(tuple((name, sizes[name]) for name in self._file.opens), bound)
            return self._named(plan.run(tuple(arrays), None, given))

    @property
    def launches(self):
        """{sizes: kernels and products of a run} for the cached plans."""
        lib = library().lib
        return {key[0]: lib.vme_cuda_plan_launches(plan.handle) for key, plan in self._plans.items()}

    @property
    def steps(self):
        """Empty: a GPU's steps have no expected times."""
        return ()

    @property
    def backends(self):
        return {"cuda": 0.0}

    @property
    def parts(self):
        return 1

    def session(self, number):
        raise ValueError(f"{self.name}: a network on a GPU has no CPU session")

    def run(self, inputs, feed=None, run_options=None, *, profile=False):
        """As Model.run, without profiles."""
        if profile:
            raise ValueError(f"{self.name}: profile: networks on a GPU are measured by its own tools")
        return super().run(inputs, feed, run_options)


class Staging(Mapping):
    """Arrays by inputs' names, over the pinned memory of a network at some sizes; the arrays keep the memory alive."""

    __slots__ = ("_arrays", "model", "plan")

    def __init__(self, model, plan, arrays):
        self.model, self.plan, self._arrays = model, plan, arrays

    def __getitem__(self, name):
        return self._arrays[name]

    def __iter__(self):
        return iter(self._arrays)

    def __len__(self):
        return len(self._arrays)


class _Plan:
    """A network at one set of sizes, in GPU memory."""

    def __init__(self, model, program, rooms, graph):
        """`rooms`: as `bound` of CudaModel._plan; None: all inputs are arrays."""
        ffi, lib = library()
        options = model.options
        flags = (
            (lib.VME_CUDA_GRAPH if graph else 0)
            | (lib.VME_CUDA_FUSED if options.fused else 0)
            | (lib.VME_CUDA_MERGED_COPIES if options.merged_copies else 0)
            | (lib.VME_CUDA_COPY_STREAM if options.copy_stream else 0)
        )
        self._ffi, self._lib, self.graph = ffi, lib, graph
        tables = model._bound if rooms is not None else {}
        fed = [number for number, port in enumerate(model.inputs) if port.name not in tables]
        self._fed, self._outputs = fed, [shape for _, shape, _ in program.outputs]
        self._shapes = [shape for _, shape, _ in program.inputs]

        def bytes_of(shape):
            size = 4
            for one in shape:
                size *= one
            return size

        def column(numbers):
            return ffi.new("int64_t[]", [int(one) for one in numbers])

        self._columns = (
            column(program.inputs[number][2] for number in fed),
            column(bytes_of(program.inputs[number][1]) for number in fed),
            column(one[2] for one in program.outputs),
            column(bytes_of(one[1]) for one in program.outputs),
        )
        ports = ffi.new("vme_cuda_ports *", [len(fed), len(program.outputs), *self._columns])
        steps = ffi.new("vme_cuda_step[]", len(program.steps))
        for step, to in zip(program.steps, steps):
            _write_step(lib, step, to, program.offsets, model._file)
        lookups = ffi.new("vme_cuda_lookup[]", len(tables))
        names = [port.name for port in model.inputs]
        count = 0
        for index, (name, (table, combiner, default_id)) in enumerate(tables.items()):
            _, shape, offset = program.inputs[names.index(name)]
            count, to = shape[0], lookups[index]
            to.table, to.offset, to.step = table.handle.handle, offset, shape[1]
            to.default_id, to.combiner, to.weighted = default_id, combiner, rooms[1][index]
            to.ids_room = 0 if index else 1 << rooms[0]  # for all lookups together
        out = ffi.new("vme_cuda_plan **")
        check(
            lib.vme_cuda_plan_new(
                model.device.handle,
                model._stream,
                model._weights,
                flags,
                max(program.arena_bytes, 1),
                ports,
                len(program.steps),
                steps,
                len(tables),
                lookups,
                count,
                out,
            )
        )
        self.handle = ffi.gc(out[0], lib.vme_cuda_plan_unref)
        self._pinned = [lib.vme_cuda_plan_input(self.handle, number) for number in range(len(fed))]
        self._staged = [
            self._pinned_array(number, ffi.cast("char *", pointer)) for number, pointer in zip(fed, self._pinned)
        ]
        self._tables = [table.handle.handle for table, *_ in tables.values()]

    def _pinned_array(self, number, pointer):
        """An array over the pinned memory of input `number`, for a `char *` that it keeps alive."""
        shape, size = self._shapes[number], 4
        for one in shape:
            size *= one
        return _array.frombuffer(self._ffi.buffer(pointer, size), "float32").reshape(shape)

    def staged(self, number):
        """The same as an array that keeps the plan alive."""
        pointer = self._ffi.cast("char *", self._pinned[self._fed.index(number)])
        return self._pinned_array(number, self._ffi.gc(pointer, _KeepAlive(self)))

    def run(self, arrays, out, bags=None):
        """A tuple of the outputs. `arrays`: the inputs; None: those that were staged."""
        ffi, lib = self._ffi, self._lib
        inputs = ffi.new("void *[]", max(len(self._fed), 1))
        held = []
        for index, number in enumerate(self._fed if arrays is not None else ()):
            array = arrays[number]
            try:
                pointer = ffi.from_buffer(array)
            except BufferError, ValueError:  # its elements are not contiguous
                self._staged[index][...] = array
                continue
            held.append(pointer)
            if pointer != self._pinned[index]:
                inputs[index] = pointer
        results, targets = [], ffi.new("void *[]", max(len(self._outputs), 1))
        for index, shape in enumerate(self._outputs):
            target = None if out is None else out[index]
            if target is None:
                array = np.empty(shape, "float32")
            elif target.dtype != np.float32 or target.shape != shape:
                raise ValueError(f"out: expected float32 of shape {shape}, got {target.dtype} of {target.shape}")
            else:
                array = target if target.flags.c_contiguous else np.empty(shape, "float32")
            results.append(array)
            pointer = ffi.from_buffer(array, require_writable=True)
            held.append(pointer)
            targets[index] = ffi.cast("void *", pointer)
        check(lib.vme_cuda_plan_run(self.handle, inputs, targets, self._bags(bags, held)))
        if out is not None:
            for index, target in enumerate(out):
                if target is not None and target is not results[index]:
                    target[...] = results[index]
                    results[index] = target
        return tuple(results)

    def _bags(self, bags, held):
        if not bags:
            return self._ffi.NULL
        records, offsets = self._ffi.new("vme_cuda_bags[]", len(bags)), {}
        for table, bag, to in zip(self._tables, bags, records):
            write_bags(self._ffi, to, table, *bag, held, offsets)
        return records


class _KeepAlive:
    """A destructor whose only purpose is to keep the plan alive while its memory is used."""

    def __init__(self, plan):
        self.plan = plan

    def __call__(self, _):
        self.plan = None


def write_bags(ffi, to, table, ids, offsets, weights, held, known):
    """Fills a vme_cuda_bags. `held` receives the objects that must stay alive with it; `known` holds offsets used
    before, which lookups of one shape share."""
    pointer = known.get(id(offsets))
    if pointer is None:
        whole = np.ascontiguousarray(offsets)
        if whole.dtype != np.int64 or whole.ndim != 1:
            raise ValueError(f"offsets: expected int64 in one dimension, got {offsets.dtype} of {offsets.shape}")
        pointer = known[id(offsets)] = ffi.from_buffer("int64_t[]", whole)
        held.append((offsets, whole))
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError(f"ids: expected int64 in one dimension, got {ids.dtype} of {ids.shape}")
    count = len(ids)
    try:
        keys = ffi.from_buffer("int64_t[]", ids) if count else ffi.new("int64_t[]", 1)
    except BufferError, ValueError:  # its elements are not contiguous
        keys = ffi.from_buffer("int64_t[]", np.ascontiguousarray(ids))
    held.append(keys)
    to.table, to.ids_count, to.ids, to.offsets = table, count, keys, pointer
    if weights is None:
        to.weights = ffi.NULL
        return
    weights = np.ascontiguousarray(weights)
    if weights.dtype != np.float32 or weights.shape != ids.shape:
        raise ValueError(f"weights: expected float32 of shape {ids.shape}, got {weights.dtype} of {weights.shape}")
    numbers = ffi.from_buffer("float[]", weights) if count else ffi.new("float[]", 1)
    held.append(numbers)
    to.weights = numbers


def _write_step(lib, step, record, offsets, file):
    record.op, record.rank = programs.STEPS.index(step.op), len(step.shape)
    record.operand_count, record.instruction_count = len(step.operands), len(step.instructions)
    record.before, record.together, record.low = step.before, step.together, step.scale
    record.reduction, record.reduced = programs.REDUCTIONS.index(step.reduction), sum(1 << d for d in step.reduced)
    for d, size in enumerate(step.shape):
        record.shape[d] = size
    for number, one in enumerate(step.operands):
        operand = record.operands[number]
        if one is None:
            operand.space = lib.VME_CUDA_ABSENT
            continue
        if one.tensor in offsets:
            operand.space, begin = lib.VME_CUDA_ARENA, offsets[one.tensor]
        else:
            operand.space, begin = lib.VME_CUDA_WEIGHTS, file.data_offset_of(one.tensor)
        operand.offset = begin + 4 * one.offset
        for d, stride in enumerate(one.strides):
            operand.strides[d] = stride
    for number, one in enumerate(step.instructions):
        instruction = record.instructions[number]
        instruction.function, instruction.operand = programs.FUNCTIONS.index(one.function), one.operand
        instruction.low, instruction.high = one.low, one.high
