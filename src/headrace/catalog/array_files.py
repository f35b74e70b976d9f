"""Files of arrays, as numpy writes them, that cannot be read."""


def why_unread(error: Exception) -> str:
    """What numpy says, but for its advice to unpickle what it takes anything else to be.

    >>> why_unread(ValueError("This file contains pickled (object) data. If you trust the file"))
    'it is no array that numpy.save has written, or one of Python objects, which are not read'
    """
    if "pickle" in str(error):
        return (
            "it is no array that numpy.save has written, or one of Python objects, which are not"
            " read"
        )
    return str(error)
