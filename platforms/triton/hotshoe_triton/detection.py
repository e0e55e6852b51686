"""How looking for GPUs can end without one; platforms turn it into a finding."""


class NoDriverError(Exception):
    """There is no GPU here that could compute: an ordinary finding."""


class DriverFailureError(Exception):
    """There is one, and its driver, its library or its permissions fail."""
