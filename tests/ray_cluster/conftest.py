"""A Ray cluster of two nodes on this machine, for all tests of the folder."""

import importlib.metadata
import os
import socket

import pytest

if "ray" not in importlib.metadata.packages_distributions():  # only `make ray-tests` brings it
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Ray keeps threads and files of its own as long as this process is connected."""


# Without Ray's processes that the tests do not need: a node gives its agent 15 s to start.
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_log_monitor": False, "no_monitor": True}
START_ATTEMPTS = 5
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def node_arguments():
    """Those of a node. It does not wait for all of its agents where ports are given."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = {name: each.getsockname()[1] for name, each in zip(PORTS, sockets)}
    for each in sockets:
        each.close()
    return NODE | ports


def add_node(cluster, **more):
    """Adds a node. On a machine that is busy Ray gives up some starts."""
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return cluster.add_node(**node_arguments(), **more)
        except Exception as error:
            if "timed out during startup" not in str(error) or attempt == START_ATTEMPTS:
                raise


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Cluster with a head and one more node, two cores each. This process is not connected."""
    from ray.cluster_utils import Cluster

    home = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # Ray writes there
    os.environ["RAY_agent_register_timeout_ms"] = "120000"  # ms; a machine that is busy starts nodes slowly
    made = Cluster()
    add_node(made, include_dashboard=False)
    add_node(made)
    yield made
    made.shutdown()
    if home is not None:
        os.environ["HOME"] = home


@pytest.fixture
def two_nodes(cluster):
    """The cluster, with two nodes again where a test has killed one."""
    while len(cluster.worker_nodes) < 1:
        add_node(cluster)
    cluster.wait_for_nodes()
    return cluster


@pytest.fixture
def connected(two_nodes):
    """This process is connected with the cluster."""
    import ray

    ray.init(address=two_nodes.address, log_to_driver=False)
    yield two_nodes
    ray.shutdown()
