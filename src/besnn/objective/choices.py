"""One check that all settings of the objective share."""

from besnn.errors import InputError


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not among the choices."""
    if value not in choices:
        raise InputError(f"{name} {value!r} is unknown: choose from {', '.join(repr(choice) for choice in choices)}")
