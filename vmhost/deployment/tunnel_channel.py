"""Constants shared by device and cloud for the tunnel (cloud/tunnel_calls.py, device/tunnel_transfers.py)."""

CHANNEL = "deployment"  # calls to the cloud, and pushes to the device that say: ask now
PIECE_BYTES = 256 << 10  # of a download, per call
DEBUG_CHANNEL = "debugging"  # requests to the device: JSON, as in vmhost/operations/debugging/desk.py
