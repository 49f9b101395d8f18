"""The errors besnn raises on purpose: one line each, naming the offending value and the remedy."""


class BesnnError(Exception):
    """Base of every deliberate error; its message is a single line fit to show a user."""


class InputError(BesnnError, ValueError):
    """A value handed to besnn is wrong: shape, dtype, range or content."""


class DataError(BesnnError, OSError):
    """A file or data set is missing, unreadable, truncated or not what it claims to be."""


class NotReadyError(BesnnError, RuntimeError):
    """A step of the life cycle (train, calibrate, score) was used before the one it needs."""
