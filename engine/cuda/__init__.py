"""Networks and embedding tables on an NVIDIA GPU, for the host: `vmhost.engine.models.opened(…, device="cuda")` and
`CudaTable`. The library libvme_cuda.so (`make cuda`) is opened on first use. Without it, or without a GPU, that raises
a DeviceError which says what to do."""

from vmhost.engine.cuda.library import DeviceError, Gpu, gpu
from vmhost.engine.cuda.network import CudaModel, Options, UnsupportedError
from vmhost.engine.cuda.tables import CudaTable

__all__ = ["CudaModel", "CudaTable", "DeviceError", "Gpu", "Options", "UnsupportedError", "gpu"]
