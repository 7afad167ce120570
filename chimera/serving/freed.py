"""Gives memory that was freed back to the system."""

import ctypes


def give_back() -> None:
    """Return freed memory; does nothing where the C library is not glibc.

    glibc keeps what lies between blocks in use: after half a billion weights were read that is half a GiB or more.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
