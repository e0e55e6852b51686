"""Writes the trained network as a Hugging Face checkpoint folder in bfloat16."""

import json
import shutil
from pathlib import Path

import torch
from demo_data.prepare import Prepared
from demo_data.tokenizer import END_OF_TEXT, TURN_END
from safetensors.torch import save_file

from demo_train.network import Network, Shape


def export(network: Network, prepared: Prepared, folder: Path) -> None:
    """Write config, generation config, tokenizer, weights and the table of sources."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(prepared.folder / "tokenizer" / file, folder / file)
    shutil.copyfile(prepared.folder / "SOURCES.md", folder / "SOURCES.md")
    tokenizer = prepared.tokenizer
    end, turn_end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    generation = {"eos_token_id": [turn_end, end], "pad_token_id": end, "do_sample": False}
    for name, content in (
        ("config.json", Shape().config(end, turn_end)),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
