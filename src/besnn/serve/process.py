"""What a process does before it serves. Making the service leaves the process alone: this is for those who launch it."""

import gc


def exempt_from_collection() -> None:
    """Exempts all objects that there are from garbage collection; called once all is loaded.

    Modules and the model live as long as the process. To look through them again and again would hold up requests.
    """
    gc.collect()
    gc.freeze()
