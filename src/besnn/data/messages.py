"""Help for error messages, which are one line each."""


def one_line(error: Exception) -> str:
    r"""Return what another library's error says, on a single line.

    Example:
        >>> one_line(ValueError("bad header:\n  too short"))
        'bad header: too short'
    """
    return " ".join(str(error).split()) or type(error).__name__
