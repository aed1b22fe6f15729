"""Who may do what, and who did it: accounts with roles, tokens with scopes, limits on requests, an audit log.

Web parts share one `Access` over one `vmhost.stores.Database`.
"""

from vmhost.access.accounts import ROLES, Access, AccessDeniedError, AccessError, Identity
from vmhost.access.limits import RateLimit

__all__ = ["ROLES", "Access", "AccessDeniedError", "AccessError", "Identity", "RateLimit"]
