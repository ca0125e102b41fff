"""How the C library treats freed memory."""

_KEPT = 24 * 1024 * 1024


def keep_freed() -> None:
    """Let the C library keep freed memory of some megabytes for the next request, in all of this process.

    The malloc of glibc gets large blocks from the kernel and returns them when they are freed, until it has seen that
    blocks of that size are freed. The kernel fills each with zeros: a third of the time of answers that are large.
    """
    bytes(_KEPT)
