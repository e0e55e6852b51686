"""How long the fuzz targets run: about a second each, or with `make fuzz` as long as it takes."""

from hypothesis import HealthCheck, settings

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("fuzz", max_examples=20_000, print_blob=True, **QUIET)
