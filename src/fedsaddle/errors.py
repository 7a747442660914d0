"""The one exception that a user's mistake raises: one line that names the thing, the rule, the value and the remedy."""


class FedsaddleError(ValueError):
    """Bad input or a run that cannot go on; the command line prints its one line and exits with code 2."""


class Diverged(FedsaddleError):
    """The iterate of a run is no longer finite."""
