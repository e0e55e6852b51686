"""The CPU platform: native kernels behind the slots; offered through `hotshoe_cpu.plugin`."""
