"""The one error of the image builder: a sentence for a person."""


class BuildError(Exception):
    """What is wrong, and what to do next."""
