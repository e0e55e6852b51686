"""Two GPUs: every collective, recorded ones too, and the tokens of one GPU. Needs two of them."""

import subprocess
import sys

import pytest

RANK = """
import sys, time, torch
from hotshoe.slots import CommunicatorSpec, GraphSpec, Rendezvous
from hotshoe_cuda.platform import CudaPlatform
from hotshoe_triton.graph import Graph

rank, size = int(sys.argv[2]), 2
platform = CudaPlatform()
platform.take_part(rank, size)
facts = platform.facts()
torch.cuda.set_device(rank)
[build] = [c.build for c in platform.candidates() if c.name == sys.argv[3]]
group = build(CommunicatorSpec(size), facts)
group.open(Rendezvous(sys.argv[1], rank, size, 60.0))
place = {"device": facts.device}

for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
    x = torch.full((3, 5), rank + 1, dtype=dtype, **place)
    assert group.all_reduce(x).eq(3).all() and x.eq(rank + 1).all()
    assert group.all_reduce(x, x) is x and x.eq(3).all()
for sizes in ([2, 2], [3, 1], [0, 4]):
    parts = [torch.full((n, 2), float(r), **place) for r, n in enumerate(sizes)]
    assert torch.equal(group.all_gather(parts[rank], sizes), torch.cat(parts))
    whole = torch.arange(8.0, **place).view(4, 2)
    assert torch.equal(group.reduce_scatter(whole, sizes), 2 * whole.split(sizes)[rank])
table = [[1, 2], [0, 3]]
x = torch.arange(3.0, **place) + 10 * rank
found = group.all_to_all(x, table[rank], [row[rank] for row in table])
assert found.tolist() == ([0.0] if rank == 0 else [1.0, 2.0, 10.0, 11.0, 12.0])
for source in range(size):
    x = torch.tensor([rank, 7], **place)
    assert group.broadcast(x, source).tolist() == [source, 7]
out = torch.zeros(4, **place)
if rank == 0:
    group.send(torch.ones(4, **place), 1).wait()
else:
    group.recv(out, 0).wait()
    assert out.eq(1).all()

x = torch.zeros(64, 4096, dtype=torch.bfloat16, **place)
def step():
    y = x * 2
    group.all_reduce(y, y)
    return group.all_gather(y)
replay = Graph(GraphSpec(64), facts).record(step)
for value in (1.0, 3.0):
    x.fill_(value * (rank + 1))
    assert replay().eq(6 * value).all()

for rows in (1, 64):
    y = torch.zeros(rows, 4096, dtype=torch.bfloat16, **place)
    def many(y=y):
        for _ in range(100):
            group.all_reduce(y, y)
        return y
    replay = Graph(GraphSpec(64), facts).record(many)
    replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    replay()
    torch.cuda.synchronize()
    print(f"all-reduce of {rows} x 4096: {(time.perf_counter() - begin) * 1e4:.1f} us")

del replay  # a library waits for what was recorded of it before it lets go
group.close()
"""


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs and a CUDA build of torch")


CANDIDATES = ("nccl", "peer_memory")


@pytest.mark.parametrize("name", CANDIDATES)
def test_collectives(tmp_path, name: str) -> None:
    command = [sys.executable, "-c", RANK, str(tmp_path)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ranks = [subprocess.Popen([*command, str(rank), name], **output) for rank in range(2)]
    outputs = [rank.communicate(timeout=120)[0].decode() for rank in ranks]
    print(outputs[0])
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("eager", [False, True])
def test_tokens_are_those_of_one_gpu(eager: bool, name: str) -> None:
    from hotshoe import LLM, SamplingParams

    prompts = ["The capital of France is", "What is 12 + 30?", "hello " * 40]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    found = []
    for size in (1, 2):
        options = {"dtype": "float32", "enforce_eager": eager, "max_num_seqs": 8}
        options["kernel"] = {"communicator": name} if size > 1 else {}
        with LLM("demo", platform="cuda", tensor_parallel_size=size, **options) as llm:
            found.append([o.outputs[0].token_ids for o in llm.generate(prompts, params)])
    assert found[0] == found[1]
