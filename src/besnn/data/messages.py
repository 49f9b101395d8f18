"""Help for error messages, which are one line each."""


def one_line(message: Exception | str) -> str:
    r"""Return what another library's error (or a name out of a file) says, on a single line.

    Example:
        >>> one_line(ValueError("bad header:\n  too short"))
        'bad header: too short'
    """
    return " ".join(str(message).split()) or type(message).__name__
