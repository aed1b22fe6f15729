"""What device and cloud agree on where they talk by a tunnel (cloud/tunnel_calls.py, device/tunnel_transfers.py)."""

CHANNEL = "deployment"  # of calls up, and of pushes down that say: ask now
PIECE_BYTES = 256 << 10  # of a download, by call
DEBUG_CHANNEL = "debugging"  # of requests down: JSON, as vmhost/operations/debugging/desk.py has it
