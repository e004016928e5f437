"""The failure of every kit."""


class KitFailure(AssertionError):
    """An entry does not satisfy its kind; the text says what was found and what should be."""
