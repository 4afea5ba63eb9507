"""The one error that users cause and can mend."""


class InputError(ValueError):
    """Bad input, told in one line: what, where, what was found, what was expected."""
