"""The training loop: compiled network in bfloat16, one batch a step, a line of progress."""

import time

import torch
from demo_data.prepare import Prepared
from demo_data.tokenizer import END_OF_TEXT

from demo_train.batches import Plan, batches
from demo_train.network import Network, Shape, document_mask
from demo_train.optimizer import Muon, rate_at


def train(prepared: Prepared, plan: Plan, device: torch.device, workers: int) -> Network:
    """Train a new network.

    Args:
        prepared: Tokenizer, text and word list.
        plan: Numbers of the run.
        device: Where to train; anything but a CPU compiles the step.
        workers: Processes that generate conversations.
    """
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    compiled = device.type != "cpu"
    network = Network(Shape(max_position_embeddings=plan.length)).to(device)
    matrices = [p for n, p in network.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in network.named_parameters() if p.dim() != 2 or "embed" in n]
    muon = Muon(matrices, compiled=compiled)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=compiled)
    run = torch.compile(network) if compiled else network
    end = prepared.tokenizer.token_to_id(END_OF_TEXT)
    started, total = time.perf_counter(), 0.0
    for step, (tokens, weights) in enumerate(batches(prepared, plan, workers)):
        tokens = tokens.to(device, non_blocking=True).long()
        weights = weights.to(device, non_blocking=True)
        inputs = tokens[:, :-1].contiguous()
        ends = (inputs == end).int()
        mask = document_mask(ends.cumsum(1) - ends, compiled)
        with torch.autocast(device.type, torch.bfloat16):
            loss = run(inputs, tokens[:, 1:].contiguous(), weights[:, 1:].contiguous(), mask)
        loss.backward()
        factor = rate_at(step, plan.steps)
        for group in adam.param_groups:
            group["lr"] = plan.other_rate * factor
        adam.step()
        adam.zero_grad(set_to_none=True)
        muon.step(plan.matrix_rate * factor)
        if step == 10:
            started, total = time.perf_counter(), 0.0
        total += inputs.numel()
        if step % 100 == 99 or step + 1 == plan.steps:
            value, seconds = loss.item(), time.perf_counter() - started
            speed = f"{total / seconds / 1e6:.2f} M tokens/s"
            print(f"step {step + 1}/{plan.steps} loss {value:.3f} {speed}", flush=True)
    return network
