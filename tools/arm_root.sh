#!/usr/bin/env bash
# Put an Arm system with Python, torch and pytest into ROOT, to be run under QEMU on another processor.
#
#   tools/arm_root.sh ROOT
#
# Needs qemu-aarch64, aarch64-linux-gnu-g++, apt of Debian, and pip of the same version of Python as
# Debian's. Fetches packages of Debian (20 MB) and wheels. torch's own wheel for Arm wants CUDA, and
# gets libraries that say that there is no device: PIP_FLAGS can name an index of CPU builds instead.
# MIRROR names another mirror of Debian than the first of this machine's.
# ROOT/python runs that Python; processes that it starts run the same file.
set -euo pipefail
root=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
suite=${SUITE:-bookworm}
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

echo "== Debian's Python for Arm"
apt=$root/var/apt
mkdir -p "$apt"/{lists,cache}/partial && : > "$apt/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
# The first mirror that this machine itself uses.
mirror=${MIRROR:-$(sed -nE 's/^(URIs: *|deb +(\[[^]]*\] +)?)(https?:[^ ]+).*/\3/p' \
  /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2> /dev/null | head -1 || true)}
echo "deb [signed-by=$keys] ${mirror:?names a mirror of Debian} $suite main" > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get -qq update
apt-get -qq --yes --download-only install "python$version" libstdc++6 libgomp1
(cd "$apt/cache/archives" && apt-get -qq download "libpython$version-dev") # headers alone
for package in "$apt"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
unset APT_CONFIG

echo "== what libraries ask of a processor: two of Neoverse V1's kind"
for cpu in 0 1; do
  folder=$root/sys/devices/system/cpu/cpu$cpu/regs/identification
  mkdir -p "$folder" "$root/proc" && echo 0x00000000411fd401 > "$folder/midr_el1"
done
for cpu in 0 1; do
  printf 'processor\t: %s\nFeatures\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm %s\n' \
    "$cpu" "asimddp asimdfhm i8mm bf16"
  printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n\n'
done > "$root/proc/cpuinfo"
cat > "$root/python" <<'RUN'
#!/usr/bin/env bash
root=$(cd "$(dirname "$0")" && pwd)
exec qemu-aarch64 -0 "$root/python" -L "$root" -E PYTHONHOME="$root/usr" \
  -E PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root/site" "$root"/usr/bin/python3.?? "$@"
RUN
chmod +x "$root/python"

echo "== wheels for Arm"
platforms=$(printf -- '--platform manylinux%s_aarch64 ' 2014 _2_17 _2_24 _2_26 _2_27 _2_28)
# shellcheck disable=SC2086
fetch() { python3 -m pip install -q --no-deps --upgrade --target "$root/site" --only-binary=:all: \
  --python-version "$version" $platforms ${PIP_FLAGS:-} -c constraints.txt "$@"; }
fetch torch numpy msgspec tokenizers safetensors jinja2 markupsafe pluggy pyyaml filelock fsspec \
  typing_extensions sympy mpmath networkx packaging setuptools huggingface_hub \
  pytest iniconfig pygments hypothesis sortedcontainers nanobind
python3 tools/absent_libraries.py "$root/site/torch/lib"
"$root/python" -c 'import platform, torch; print(f"torch {torch.__version__} on {platform.machine()}")'
