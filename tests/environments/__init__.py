"""Hosts started in the environments that people have: allocators, limits of the process, servers, event loops. See
__main__.py."""
