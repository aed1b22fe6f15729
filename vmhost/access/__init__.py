"""Access control: accounts with roles, tokens with scopes, rate limits, an audit log.

Web parts share one `Access` over one `vmhost.stores.Database`.
"""

from vmhost.access.accounts import ROLES, Access, AccessDeniedError, AccessError, Identity
from vmhost.access.limits import RateLimit, network_of

__all__ = ["ROLES", "Access", "AccessDeniedError", "AccessError", "Identity", "RateLimit", "network_of"]
