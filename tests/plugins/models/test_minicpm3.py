"""MiniCPM 3: sizes and factors that follow from others."""


def spec_of(ctx):
    [spec] = {spec for slot, spec in ctx.selector.decisions if slot == "mla_attention"}
    return spec


def test_values_share_the_hidden_size(build_family) -> None:
    sizes = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    assert spec_of(build_family("MiniCPM3", **sizes)).v_dim == 16
    spec = spec_of(build_family("MiniCPM3", **sizes, v_head_dim=12))
    assert spec.v_dim == 12 and not spec.interleaved
