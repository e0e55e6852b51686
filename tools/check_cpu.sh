#!/usr/bin/env bash
# Build, check and time the CPU platform on this machine in one call.
#
#   tools/check_cpu.sh OUT_DIR [CORES]
#
# Needs a python3 with torch, pytest and a C++ compiler; installs into OUT_DIR/site, downloads
# nothing. CORES (default 0,1) is what taskset gives to everything that is timed.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cores=${2:-0,1}
cd "$(dirname "$0")/.."

echo "== build"
python3 -m pip install -q --no-deps --no-build-isolation --target "$out/site" --upgrade \
  . ./core ./platforms/cpu ./plugins/models ./plugins/quantization
export PYTHONPATH=$out/site
grep -m1 'model name' /proc/cpuinfo
python3 -c 'import hotshoe_native as n; print(*n.available(), n.load().info(), sep="\n")'

echo "== tests"
python3 -m pytest -q -p no:cacheprovider tests/native tests/platforms/cpu 2>&1 | tail -15

echo "== what neighbors leave of each core"
python3 benchmarks/native/cores.py | tee "$out/cores.txt"

echo "== kernels"
for script in bandwidth linear attention; do
  taskset -c "$cores" python3 "benchmarks/native/$script.py" 2>&1 | tee "$out/$script.txt" | tail -40
done

echo "== engine, Qwen3-0.6B dimensions, dummy weights"
model=(benchmarks/models/qwen3-0.6b --load-format dummy --skip-tokenizer-init --max-model-len 2048
  --max-num-seqs 32)
engine() {
  echo "-- $*"
  taskset -c "$cores" python3 -m hotshoe.cli bench "$1" "${model[@]}" "${@:2}" 2>&1 | tail -5
}
for quantization in "" "--quantization=int8"; do
  engine latency --input-len 128 --output-len 128 $quantization
  engine latency --input-len 1024 --output-len 1 $quantization
  engine throughput --num-prompts 32 --input-len 256 --output-len 64 $quantization
done
