"""Returns freed memory to the system: loading, trials and TLS leave some 5 MB of it in glibc's heap."""


def give_back():
    """Does nothing where the C library has no malloc_trim, or Python no ctypes."""
    global _trim
    if _trim is None:
        try:
            import ctypes

            _trim = ctypes.CDLL(None).malloc_trim
        except ImportError, OSError, AttributeError:
            _trim = int
    _trim(0)


_trim = None
