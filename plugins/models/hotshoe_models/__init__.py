"""Model architectures, as data over one decoder; offered through `hotshoe_models.plugin`."""
