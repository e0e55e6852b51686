#!/usr/bin/env bash
# Build the CPU kernels for Arm as a wheel, and check their numbers and a model's text under emulation.
#
#   tools/check_arm.sh OUT_DIR ROOT [PYTEST_ARGUMENT...]
#
# ROOT is what tools/arm_root.sh makes. Python runs emulated, compilers do not. Needs what
# arm_root.sh needs, and a python3 with Hotshoe installed. Runs tests where arguments for pytest are
# given, such as `tests/native tests/platforms/cpu`: these take hours. ISAS names fewer builds to check.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/.."
isas=${ISAS:-generic dotprod i8mm_bf16}
export PYTHONPATH=$out/site

echo "== build"
PYTHONPATH='' CPLUS_INCLUDE_PATH=$root/usr/include:$(echo "$root"/usr/include/python3.*) \
  "$root/python" setup.py -q egg_info --egg-base="$out" build --build-base="$out/build" \
  bdist_wheel --dist-dir="$out"
rm -rf "$out/site"
python3 -m zipfile -e "$out"/hotshoe_native-*_aarch64.whl "$out/site"
PYTHONPATH='' python3 -m pip install -q --no-deps --no-build-isolation --target "$out/site" \
  ./core ./platforms/cpu ./plugins/{conformance,demo,hub,models,quantization,speculation}
"$root/python" -c 'import hotshoe_native
for status in hotshoe_native.available(): print(*status)'

for isa in $isas; do
  echo "== numbers of $isa, by numpy"
  "$root/python" tools/kernel_numbers.py "$out"/site/hotshoe_native/_"$isa".*.so "_$isa"
done

write() { # in float32: builds of one processor may choose differently where bfloat16 is near a tie
  "$@" --prompt "The lamp" --max-tokens 48 --temperature 0 --dtype float32 --quiet
}
expected=$(PYTHONPATH='' write python3 -m hotshoe.cli generate demo --platform cpu)
for isa in $isas; do
  echo "== text of the bundled model with $isa"
  found=$(write "$root/python" -m hotshoe.cli generate demo --platform cpu \
    --platform-options.isa "$isa")
  [ "$found" = "$expected" ] || { printf '%s\nis not\n%s\n' "$found" "$expected" >&2; exit 1; }
  echo "$found"
done

for isa in $isas; do
  echo "== conformance of $isa"
  "$root/python" -m hotshoe.cli conformance --platform cpu --quick --platform-options "isa=$isa"
done

if [ $# -gt 0 ]; then
  echo "== tests"
  "$root/python" -m pytest -q -p no:cacheprovider "$@"
fi
