"""How looking for GPUs can end without one."""


class NoDriverError(Exception):
    """There is no AMD GPU here that could compute: an ordinary finding."""


class DriverFailureError(Exception):
    """There is one, and its driver, its library or its permissions fail."""
