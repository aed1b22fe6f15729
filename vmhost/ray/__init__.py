"""VMs on the nodes of a Ray cluster (`pip install 'vmhost[ray]'`).

with vmhost.ray.ClusterExecutor("10.0.0.1:6379") as pool:
    list(pool.map(function, items))
"""

try:
    import ray  # noqa: F401
except ImportError as error:
    raise ImportError("vmhost.ray needs Ray: pip install 'vmhost[ray]'", name="ray") from error

from vmhost.ray.executor import ClusterExecutor, ClusterStatistics, NodeLostError, NodeStatistics

__all__ = ["ClusterExecutor", "ClusterStatistics", "NodeLostError", "NodeStatistics"]
