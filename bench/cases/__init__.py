"""One module per subject; each has `run(quick) -> list of Result`."""

ENGINE_CLASSES = ("overhead", "elementwise", "reductions", "casts", "movement", "products", "chains", "surface", "vms")
ENGINE_SIZES = {"1e3": 1000, "1e5": 100_000, "1e7": 10_000_000}  # elements of elementwise, reductions and casts
NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "squeezenet1_1",
    "shufflenet_v2",
    "bert",
    "din",
)  # of bench/networks.py, which needs onnx
OPERATIONS_ROWS = (
    "cost",
    "profiles",
    "scrape",
    "dashboard",
    "replays",
    "covered",
    "memory_lines",
    "fleet_reports",
)  # functions of bench/operations.py
