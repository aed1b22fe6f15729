"""An order: the platform's signature over what one device should have, in answer to one request of it.

Without one a device loads, switches and unloads nothing. The role `releases`, to which `targets` delegates, signs it:
its key is on the platform, so a proxy, a CDN or whoever else passes answers on cannot make orders, nor repeat old ones,
nor have the platform decide by facts that the device did not state.
"""

import hashlib
import json

ROLE = "releases"
MAX_NONCE = 64


def signed_part(device, nonce, profile, answer):
    """What is signed: for this device, this request (`nonce`), and what the device stated (`profile`, profile.py)."""
    text = json.dumps(answer["wanted"], sort_keys=True, separators=(",", ":"))
    return {
        "_type": "order",
        "device": device,
        "nonce": nonce,
        "profile": profile,
        "acknowledged": answer["acknowledged"],
        "wanted": hashlib.sha256(text.encode()).hexdigest(),
    }
