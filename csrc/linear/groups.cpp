// Products with grouped weights: a few rows of x meet the values as they come out of their bits;
// for many rows, blocks of W are unpacked to plain numbers first, which the plain kernels multiply.

#include "linear/groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "common/parallel.h"
#include "linear/group_values.h"
#include "linear/linear.h"
#include "linear/tile.h"

namespace hotshoe::linear {
namespace {

// Rows of x up to which unpacking W costs more than it saves: fewer where plain bfloat16 is multiplied
// in pairs and 8 bits are not, or on tiles.
constexpr int64_t kMaxDirectRows = 16, kMaxDirectSingles = 8, kMaxDirectBeforeTiles = 4;
// Unpacked blocks stay near a core until they are multiplied, and are enough to be worth a call.
constexpr int64_t kUnpackedBytes = 2048 * 1024;

// Rows of x that share the unpacking of a line, chains of sums for each.
constexpr int kTileRows = VL == kBlockRows ? 4 : 2, kChains = VL == kBlockRows ? 4 : 2;

// Values one by one, with x in float.
template <class F>
struct Singles : F {
  typedef float X;
  static constexpr int kSteps = F::kValues;
  using F::F;
  Vec values(const UintLanes* words, int i) const { return F::value(words, i); }
  static Vec add(Vec q, X x, Vec sum) { return vfma(q, vset(x), sum); }
};

#ifdef __AVX512BF16__
// Values in pairs, with x in pairs of bfloat16 in that order.
template <class F>
struct Pairs : F {
  typedef uint32_t X;
  static constexpr int kSteps = F::kValues / 2;
  using F::F;
  float base() const { return F::kPairBase; }
  __m512bh values(const UintLanes* words, int i) const { return F::pair(words, i); }
  static Vec add(__m512bh q, X x, Vec sum) {
    return {_mm512_dpbf16_ps(sum.v, q, (__m512bh)_mm512_set1_epi32(int(x)))};
  }
};
template <class F>
using Narrow = std::conditional_t<std::is_same_v<F, Integers<8>>, Singles<F>, Pairs<F>>;
#else
template <class F>
using Narrow = Singles<F>;
#endif

// One row of x after another in a form of its own, and the sum of each group of it.
template <class X>
struct Inputs {
  const X* x;
  int64_t stride;
  const float* sums;
};

// Sums of kRows rows of x with one block.
template <class V, class S, int kRows>
void multiply(const Groups& w, const char* block, Inputs<typename V::X> in,
              float (*out)[kBlockRows]) {
  Vec total[kRows][kVectors];
  for (auto& row : total) std::fill(row, row + kVectors, vzero());
  const V form(w);
  const float base = form.base() + float(w.minima ? 0 : w.offset);
  const auto* x = in.x;
  for (int64_t g = 0; g < w.groups(); ++g) {
    auto [lines, d] = Group<S>(w, block, g);
    Vec sum[kRows][kVectors][kChains];
    for (auto& row : sum) {
      for (auto& chains : row) std::fill(chains, chains + kChains, vzero());
    }
    for (int64_t line = 0; line < w.lines(); line += V::kLines, x += V::kSteps) {
      const char* from = lines + line * kLineBytes;
      for (int i = 0; i < V::kLines; ++i) __builtin_prefetch(from + kAhead + i * kLineBytes);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        UintLanes words[V::kLines];
        load_lines(from + v * VL * 4, words);
#pragma GCC unroll 16
        for (int i = 0; i < V::kSteps; ++i) {
          const auto q = form.values(words, i);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            Vec& s = sum[r][v][i % kChains];
            s = V::add(q, x[r * in.stride + i], s);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float inputs = in.sums[r * w.groups() + g];
        Vec s = sum[r][v][0];
        for (int c = 1; c < kChains; ++c) s += sum[r][v][c];
        if (w.minima) {
          total[r][v] = vfma(vload(d + kBlockRows + v * VL), vset(inputs), total[r][v]);
        }
        if (base != 0) s -= vset(base * inputs);
        total[r][v] = vfma(vload(d + v * VL), s, total[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      vstore(out[r] + v * VL, total[r][v] * factor<S>(block, v));
    }
  }
}

template <class V, class S>
void multiply(int rows, const Groups& w, const char* block, Inputs<typename V::X> in,
              float (*out)[kBlockRows]) {
  switch (rows) {
    case 1: return multiply<V, S, 1>(w, block, in, out);
    case 2: return multiply<V, S, 2>(w, block, in, out);
    case 3: return multiply<V, S, std::min(3, kTileRows)>(w, block, in, out);
    default: return multiply<V, S, kTileRows>(w, block, in, out);
  }
}

// All rows of x as pairs of what lies `steps` apart.
[[maybe_unused]] const uint32_t* pairs_of(const GroupsCall& call, int steps) {
  auto* pairs = (uint32_t*)kept_memory<2>(size_t(call.m * (call.w.k / 2)) * sizeof(uint32_t));
  uint32_t* to = pairs;
  for (int64_t r = 0; r < call.m; ++r) {
    const auto* x = (const uint16_t*)call.x + r * call.x_stride;
    for (const auto* end = x + call.w.k; x < end; x += 2 * steps, to += steps) {
      for (int i = 0; i < steps; ++i) to[i] = x[i] | uint32_t(x[i + steps]) << 16;
    }
  }
  return pairs;
}

// x as `V` reads it.
template <class V>
Inputs<typename V::X> arranged(const GroupsCall& call, const float* x, const float* sums) {
  if constexpr (std::is_same_v<typename V::X, float>) {
    return {x, call.w.k, sums};
  } else {
    return {pairs_of(call, V::kSteps), call.w.k / 2, sums};
  }
}

template <class V>
Inputs<typename V::X> read_inputs(const GroupsCall& call) {
  const Groups& w = call.w;
  auto* x = (float*)kept_memory<0>(size_t(call.m * (w.k + w.groups())) * sizeof(float));
  float* sums = x + call.m * w.k;
  visit_float(int(w.x), [&](auto type) {
    using X = decltype(type);
    for (int64_t r = 0; r < call.m; ++r) {
      float* row = x + r * w.k;
      convert_row((const X*)call.x + r * call.x_stride, row, w.k);
      for (int64_t g = 0; g < w.groups(); ++g) {
        Vec sum = vzero();
        for_vectors(w.group, [&](int64_t i, auto lanes) { sum += load(row + g * w.group + i, lanes); });
        sums[r * w.groups() + g] = vsum(sum);
      }
    }
  });
  return arranged<V>(call, x, sums);
}

template <class V, class S>
void multiply_directly(const GroupsCall& call) {
  const Groups& w = call.w;
  const auto in = read_inputs<V>(call);
  for_blocks(w, 1, [&](int64_t block, int64_t) {
    const char* from = (const char*)call.weights + block * w.block_bytes();
    for (int64_t row = 0; row < call.m; row += kTileRows) {
      const int rows = int(std::min<int64_t>(kTileRows, call.m - row));
      float sums[kTileRows][kBlockRows];
      multiply<V, S>(rows, w, from, {in.x + row * in.stride, in.stride, in.sums + row * w.groups()},
                     sums);
      visit_float(int(call.y_dtype), [&](auto type) {
        write_rows<decltype(type)>(call, block, row, rows, sums);
      });
    }
  });
}

// The nearest bfloat16, ties away from zero, in the upper half of each word. Weights are finite.
UintLanes rounded(Vec v) { return (UintLanes)v.v + 0x8000u; }

// One block to the plain layout of its type; lines that pad K are zero already.
template <class F, class S>
void unpack_block(const Groups& w, const char* block, char* to) {
  constexpr bool kNarrow = sizeof(S) == 2;
  const F form(w);
  for (int64_t g = 0; g < w.groups(); ++g) {
    const auto [lines, d] = Group<S>(w, block, g);
    for (int v = 0; v < kVectors; ++v) {
      const Vec all = factor<S>(block, v), scale = vload(d + v * VL) * all;
      const Vec least = w.minima ? vload(d + kBlockRows + v * VL) * all
                                 : scale * vset(-float(w.offset));
      const Vec base = vset(form.base());
      char* at = to + (g * w.group >> kNarrow) * kLineBytes + v * VL * 4;
      for (int64_t line = 0; line < w.lines(); line += F::kLines) {
        UintLanes words[F::kLines];
        load_lines(lines + line * kLineBytes + v * VL * 4, words);
#pragma GCC unroll 16
        for (int i = 0; i < F::kValues; i += 1 + kNarrow, at += kLineBytes) {
          const Vec first = vfma(form.value(words, i) - base, scale, least);
          if constexpr (kNarrow) {
            const Vec second = vfma(form.value(words, i + 1) - base, scale, least);
            const UintLanes pair = (rounded(first) >> 16) | (rounded(second) & 0xffff0000u);
            std::memcpy(at, &pair, sizeof pair);
          } else {
            vstore((float*)at, first);
          }
        }
      }
    }
  }
}

void unpack(const GroupsCall& call, int64_t begin, int64_t end, const Layout& layout, char* to) {
  const Groups& w = call.w;
  const auto run = visit_values(w, [&](auto kind) {
    using F = typename decltype(kind)::type;
    return w.narrow() ? unpack_block<F, f16> : unpack_block<F, float>;
  });
  const int64_t used = divide_up(w.k * element_bytes(w.x), kGroupBytes) * kLineBytes;
  parallel_for(end - begin, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      char* block = to + i * layout.block_bytes;
      std::memset(block + used, 0, size_t(layout.block_bytes - used));
      run(w, (const char*)call.weights + (begin + i) * w.block_bytes(), block);
    }
  });
}

void multiply_unpacked(const GroupsCall& call) {
  const Groups& w = call.w;
  const int64_t block_bytes = Layout(w.x, kBlockRows, w.k).block_bytes;
  const int64_t step = std::max<int64_t>(kUnpackedBytes * num_threads() / block_bytes, 2);
  char* plain = kept_memory<1>(size_t(std::min(step, w.blocks()) * block_bytes));
  for (int64_t block = 0; block < w.blocks(); block += step) {
    const int64_t end = std::min(block + step, w.blocks()), first = block * kBlockRows;
    const Layout layout(w.x, std::min(w.n, end * kBlockRows) - first, w.k);
    unpack(call, block, end, layout, plain);
    const int64_t y_bytes = call.y_dtype == DType::f32 ? 4 : 2;
    linear({layout, plain, call.m, w.x, call.x, call.x_stride,
            call.bias ? call.bias + first : nullptr, call.y_dtype,
            (char*)call.y + first * y_bytes, call.y_stride, 0});
  }
}

// The power of two that brings the largest of a row's scales near the top of float16.
float row_factor(const Groups& w, const float* d, const float* m) {
  float largest = 0;
  for (int64_t g = 0; g < w.groups(); ++g) {
    largest = std::max(largest, std::max(std::fabs(d[g]), m ? std::fabs(m[g]) : 0.0f));
  }
  if (largest == 0 || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::max(std::ilogb(largest) - 14, -126));
}

// What is no value of a table.
constexpr uint8_t kUnknown = 0xff;

// The bits of each byte: its own, or where the table has it.
std::array<uint8_t, 256> bits_of_bytes(const Groups& w) {
  std::array<uint8_t, 256> bits;
  for (int i = 0; i < 256; ++i) bits[i] = w.table ? kUnknown : uint8_t(i);
  for (int i = 0; w.table && i < 1 << w.bits; ++i) bits[uint8_t(w.table[i])] = uint8_t(i);
  return bits;
}

// One row, the `lane`-th of its block.
template <class P, class S>
void pack_row(const Groups& w, char* block, int64_t lane, const uint8_t* bits,
              const uint8_t* values, const float* d, const float* m) {
  float factor = 1;
  if constexpr (sizeof(S) == 2) factor = ((float*)block)[lane] = row_factor(w, d, m);
  for (int64_t g = 0; g < w.groups(); ++g) {
    const Group<S> group(w, block, g);
    auto* words = (uint32_t*)group.lines + lane;
    for (int64_t line = 0; line < w.lines(); line += P::kLines, values += P::kValues) {
      uint32_t packed[P::kLines] = {};
      for (int i = 0; i < P::kValues; ++i) P::put(packed, i, bits[values[i]]);
      for (int i = 0; i < P::kLines; ++i) words[(line + i) * kBlockRows] = packed[i];
    }
    group.d[lane] = from_float<S>(d[g] / factor);
    if (m) group.d[kBlockRows + lane] = from_float<S>(m[g] / factor);
  }
}

}  // namespace

void pack_groups(const Groups& w, void* packed, const GroupRows& rows) {
  if (rows.begin < 0 || rows.count < 0 || rows.begin + rows.count > w.n) {
    throw std::invalid_argument("rows beyond the weight's " + std::to_string(w.n));
  }
  if (w.minima != (rows.m != nullptr)) throw std::invalid_argument("minima are missing, or too many");
  const auto bits = bits_of_bytes(w);
  const auto is_unknown = [&](uint8_t value) { return bits[value] == kUnknown; };
  if (w.table && std::any_of(rows.values, rows.values + rows.count * w.k, is_unknown)) {
    throw std::invalid_argument("the table lacks some of the values");
  }
  const auto pack = visit_values(w, [&](auto kind) {
    using P = typename decltype(kind)::type;
    return w.narrow() ? pack_row<P, f16> : pack_row<P, float>;
  });
  parallel_for(rows.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows.begin + i;
      char* block = (char*)packed + row / kBlockRows * w.block_bytes();
      const float* d = rows.d + i * w.groups();
      const float* m = rows.m ? rows.m + i * w.groups() : nullptr;
      pack(w, block, row % kBlockRows, bits.data(), rows.values + i * w.k, d, m);
    }
  }, kBlockRows);
}

namespace {

int64_t max_direct_rows(const Groups& w) {
  if (!w.narrow()) return kMaxDirectRows;
  if (amx_kernel(w.x)) return kMaxDirectBeforeTiles;
#ifdef __AVX512BF16__
  if (w.bits == 8) return kMaxDirectSingles;
#endif
  return kMaxDirectRows;
}

}  // namespace

void linear_groups(const GroupsCall& call) {
  visit_float(int(call.y_dtype), [](auto) {});
  if (call.m > max_direct_rows(call.w)) return multiply_unpacked(call);
  visit_values(call.w, [&](auto kind) {
    using F = typename decltype(kind)::type;
    call.w.narrow() ? multiply_directly<Narrow<F>, f16>(call)
                    : multiply_directly<Singles<F>, float>(call);
  });
}

}  // namespace hotshoe::linear
