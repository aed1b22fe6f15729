"""The engines that run a network: ours, in the host and in a VM, and those that a user would pick instead. Each is a
class of this form:

    Engine(folder, threads)  opens what the folder has (bench/model_files.py), for runs with so many threads
    engine.run(inputs)       {name: array} from {name: array}, of NumPy unless the engine prefers another type
    engine.about             {what: setting}: version and options
    Engine.ENVIRONMENT       environment of its process, if it needs any
    Engine.MODULES           its imports, a peer's package first: importing does not count as opening

Each runs in a process of its own (bench/model_process.py), so its modules are imported only there. Peers compute in
float32, with as many threads as ours, and with all their graph optimizations."""

import importlib.metadata
import time


def _read(folder):
    """The bytes of our model file, as hosts and `engine.load` read them, and the ms for that; a host has read it for
    its digests before it makes a session."""
    from vmhost.engine.task_models import find

    began = time.perf_counter()
    _, data = find(folder / "network.vmm")
    return data, 1000 * (time.perf_counter() - began)


class InTheHost:
    NAME = "in the host"
    MODULES = ("vmhost.engine.library", "vmhost.engine.models", "vmhost.engine.task_models", "numpy")

    def __init__(self, folder, threads):
        from vmhost.engine import library
        from vmhost.engine.models import opened

        library.set_threads(threads)
        data, read_ms = _read(folder)
        self._model = self.run = opened("network", data, spend=True)
        self.about = {
            "backend": next(backend.name for backend in library.backends() if backend.current),
            "threads": threads,
            "read_ms": read_ms,
        }


class KeptInTheHost:
    """A model already prepared in the state folder, as by `Host.load`; only opened, not run."""

    NAME = "in the host, with caches"
    MODULES = (*InTheHost.MODULES, "vmhost.runtime.kept_models")

    def __init__(self, folder, threads):
        from vmhost.engine import library
        from vmhost.runtime.kept_models import KeptModels

        library.set_threads(threads)
        data, read_ms = _read(folder)
        self._model = library.Model(data, kept=KeptModels(folder).path_of(b"network"), spend=True)
        self.about = {"kept": self._model.was_kept, "read_ms": read_ms}


class InAVM:
    """Concurrent callers get VMs of their own, up to eight."""

    NAME = "in a VM"
    MODULES = ("vmhost", "vmhost.engine.library")

    def __init__(self, folder, threads):
        import vmhost
        from vmhost.engine import library

        library.set_threads(threads)
        self._host = vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(cores=8))
        self.run = self._host.load(folder / "network.vmb")
        self.about = {"threads": threads}

    @property
    def vms(self):
        return sum(vm.task == self.run.name and vm.state == "serving" for vm in self._host.statistics().vms)

    def close(self):
        self._host.close()


class ONNXRuntime:
    NAME = "ONNX Runtime"
    MODULES = ("onnxruntime",)

    def __init__(self, folder, threads):
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = onnxruntime.InferenceSession(
            str(folder / "network.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._names = [port.name for port in self._session.get_outputs()]
        self.about = {"version": onnxruntime.__version__, "threads": threads, "graph": "ORT_ENABLE_ALL"}

    def run(self, inputs):
        return dict(zip(self._names, self._session.run(self._names, inputs)))


class OpenVINO:
    NAME = "OpenVINO"
    MODULES = ("openvino",)

    def __init__(self, folder, threads):
        import openvino

        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        model = openvino.Core().compile_model(str(folder / "network.onnx"), "CPU", options)
        self._request = model.create_infer_request()
        self._names = [port.any_name for port in model.outputs]
        self.about = {"version": openvino.__version__, **options, "streams": str(model.get_property("NUM_STREAMS"))}

    def run(self, inputs):
        tensors = self._request.infer(inputs, share_inputs=True, share_outputs=True)
        return {name: tensors[name] for name in self._names}


class MNN:
    """Its wheel is built without AVX-512."""

    NAME = "MNN"
    MODULES = ("MNN",)
    ENVIRONMENT = {
        "GLIBC_TUNABLES": "glibc.rtld.execstack=2"
    }  # its libraries need an executable stack, which glibc 2.41 and newer refuse
    CONVERSION = (
        "--optimizeLevel",
        "2",
        "--optimizePrefer",
        "2",
    )  # no --transformerFuse: it gives wrong outputs for BERT (by half of the largest)

    def __init__(self, folder, threads):
        import json

        import MNN

        ports = json.loads((folder / "network.json").read_text())
        options = {"backend": "CPU", "precision": "high", "memory": "normal", "power": "high", "numThread": threads}
        self._expr, self._outputs = MNN.expr, ports["outputs"]
        self._inputs = [
            (name, MNN.expr.float if dtype == "float32" else MNN.expr.int) for name, dtype in ports["inputs"]
        ]
        self._runtime = MNN.nn.create_runtime_manager((options,))
        self._model = MNN.nn.load_module_from_file(
            str(folder / "network.mnn"),
            [name for name, _ in self._inputs],
            self._outputs,
            runtime_manager=self._runtime,
        )
        self.about = {
            "version": importlib.metadata.version("MNN"),
            **options,
            "conversion": " ".join(self.CONVERSION),
            "built": "without AVX-512",
        }

    def run(self, inputs):
        expr = self._expr
        given = [
            expr.const(
                inputs[name] if dtype == expr.float else inputs[name].astype("int32"),
                list(inputs[name].shape),
                expr.NCHW,
                dtype,
            )
            for name, dtype in self._inputs
        ]
        return {name: variable.read() for name, variable in zip(self._outputs, self._model.forward(given))}


class Torch:
    """Traced, frozen and optimized for inference: the fastest of torch's options here (torch.compile, which needs a C++
    compiler, was slower on most networks)."""

    NAME = "torch"
    MODULES = ("torch", "bench.torch_network")
    INSTALL = "pip install torch"

    def __init__(self, folder, threads):
        import torch

        from bench.torch_network import Network

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        network = Network(folder / "network.onnx").eval()
        self._torch, self._inputs, self._outputs, self._traced = torch, network.inputs, network.outputs, None
        self._network = network
        self.about = {
            "version": torch.__version__,
            "threads": threads,
            "graph": "torch.jit: trace, freeze, optimize_for_inference",
        }

    def run(self, inputs):
        with self._torch.inference_mode():
            given = [self._torch.from_numpy(inputs[name]) for name in self._inputs]
            if self._traced is None:  # with the shapes and dtypes of the first run
                jit = self._torch.jit
                self._traced = jit.optimize_for_inference(jit.freeze(jit.trace(self._network, given)))
            return {name: tensors.numpy() for name, tensors in zip(self._outputs, self._traced(*given))}


OURS = (InTheHost, InAVM)
PEERS = (ONNXRuntime, OpenVINO, MNN, Torch)
NEEDED = (ONNXRuntime, OpenVINO)  # a comparison without these is meaningless
ENGINES = {engine.__name__: engine for engine in (*OURS, KeptInTheHost, *PEERS)}
