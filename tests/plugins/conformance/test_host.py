"""The oracle is core's references and nothing else."""

from hotshoe.plugins.platforms import choose_platform
from hotshoe_conformance.host import PLATFORM, host_plugins


def test_it_is_chosen_by_name_alone_and_brings_no_kernel() -> None:
    plugins = host_plugins()
    platform = choose_platform(plugins, PLATFORM)
    assert platform.candidates() == ()
    assert platform.facts().device == "cpu"
    assert choose_platform(plugins, "auto").name != PLATFORM
