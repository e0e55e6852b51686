#!/usr/bin/env bash
# Cross-compile the CPU kernels for Arm and check their numbers under emulation.
#
#   tools/check_arm.sh OUT_DIR ROOT
#
# Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user), a python3
# with setuptools and nanobind, and ROOT: an Arm system's files with a Python of the same version in
# usr/bin and numpy for it in ROOT/site. Downloads nothing.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
isas=${ISAS:-generic,dotprod}
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

echo "== cross-compile $isas"
CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ LDSHARED="aarch64-linux-gnu-g++ -shared" \
  LDCXXSHARED="aarch64-linux-gnu-g++ -shared" python3 setup.py -q build_ext --isa="$isas" \
  --build-lib="$out" --build-temp="$out/objects"

for isa in ${isas//,/ }; do
  echo "== numbers of $isa"
  built=("$out/hotshoe_native/_$isa".*.so)
  cp "${built[0]}" "$out/_$isa.so" # the suffix names the processor of the compiler
  qemu-aarch64 -L "$root" -E PYTHONPATH="$root/site" "$root/usr/bin/python$version" \
    tools/kernel_numbers.py "$out/_$isa.so" "_$isa"
done
