// Products with grouped weights: a few rows of x meet the values as they come out of their bits;
// for many rows, blocks of W are unpacked to plain numbers first, which the plain kernels multiply.

#include "linear/groups.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/parallel.h"
#include "common/rows.h"
#include "common/words.h"
#include "linear/linear.h"

namespace hotshoe::linear {
namespace {

// Rows of x up to which unpacking W costs more than it saves: fewer where pairs of bfloat16 are
// multiplied at once.
#ifdef __AVX512BF16__
constexpr int64_t kMaxDirectNarrowRows = 4;
#else
constexpr int64_t kMaxDirectNarrowRows = 16;
#endif
constexpr int64_t kMaxDirectRows = 16;
// Vectors that hold a line, rows of x that share the unpacking of it, chains of sums for each.
constexpr int kVectors = kBlockRows / VL;
constexpr int kTileRows = VL == kBlockRows ? 4 : 2, kChains = VL == kBlockRows ? 4 : 2;
// Waking another thread pays from about so many bytes of W.
constexpr int64_t kMinThreadBytes = 64 * 1024;
constexpr int64_t kChunksPerThread = 8;
// Unpacked blocks stay near a core until they are multiplied, and are enough to be worth a call.
constexpr int64_t kUnpackedBytes = 2048 * 1024;

typedef uint32_t UintLanes __attribute__((vector_size(VL * 4)));

// Memory of the calling thread, kept between calls: for x, for unpacked weights, for pairs of x.
template <int kUse>
char* kept_memory(size_t bytes) {
  thread_local size_t capacity = 0;
  thread_local std::unique_ptr<char[]> memory;
  if (bytes + kLineBytes > capacity) {
    memory.reset(new char[bytes + kLineBytes]);
    capacity = bytes + kLineBytes;
  }
  char* begin = memory.get();
  return begin + (kLineBytes - intptr_t(begin) % kLineBytes) % kLineBytes;
}

UintLanes load_line(const char* p) {
  UintLanes words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

template <int kBits>
Vec value(UintLanes words, int i) {
  const UintLanes bits = (words >> uint32_t(kBits * i)) & uint32_t((1u << kBits) - 1u);
  return {(decltype(Vec::v))__builtin_convertvector((IntLanes)bits, FloatLanes)};
}

// Values one by one, with x in float.
template <int kBits>
struct Singles {
  typedef float X;
  static constexpr int kSteps = 32 / kBits, kBase = 0;
  static Vec values(UintLanes words, int i) { return value<kBits>(words, i); }
  static Vec add(Vec q, X x, Vec sum) { return vfma(q, vset(x), sum); }
};

#ifdef __AVX512BF16__
// Four bits are the last ones of a bfloat16 from 128 on. So numbers four places apart are a pair of
// those without being converted, but for kBase. x is pairs of bfloat16 in that order.
struct Pairs {
  typedef uint32_t X;
  static constexpr int kSteps = 4, kBase = 128;
  static __m512bh values(UintLanes words, int i) {
    return (__m512bh)(((words >> uint32_t(4 * i)) & 0x000f000fu) | 0x43004300u);
  }
  static Vec add(__m512bh q, X x, Vec sum) {
    return {_mm512_dpbf16_ps(sum.v, q, (__m512bh)_mm512_set1_epi32(int(x)))};
  }
};
using NarrowFours = Pairs;
#else
using NarrowFours = Singles<4>;
#endif

// One row of x after another in a form of its own, and the sum of each group of it.
template <class X>
struct Inputs {
  const X* x;
  int64_t stride;
  const float* sums;
};

// What is a factor of all scales of a block.
template <class S>
Vec factor(const char* block, int v) {
  return sizeof(S) == 2 ? vload((const float*)block + v * VL) : vset(1.0f);
}

// Where a group's lines and scales are.
template <class S>
struct Group {
  char* lines;
  S* d;

  Group(const Groups& w, const char* block, int64_t g) {
    const int64_t unit = g / w.unit(), in_unit = g % w.unit();
    char* begin = (char*)block + (sizeof(S) == 2) * kLineBytes + unit * w.unit_bytes();
    lines = begin + in_unit * w.lines() * kLineBytes;
    d = (S*)(begin + w.unit() * w.lines() * kLineBytes) + in_unit * kBlockRows;
  }
};

// Sums of kRows rows of x with one block.
template <class V, class S, int kRows>
void multiply(const Groups& w, const char* block, Inputs<typename V::X> in,
              float (*out)[kBlockRows]) {
  Vec total[kRows][kVectors];
  for (auto& row : total) std::fill(row, row + kVectors, vzero());
  const float base = float(V::kBase + (w.minima ? 0 : w.offset));
  const auto* x = in.x;
  for (int64_t g = 0; g < w.groups(); ++g) {
    auto [lines, d] = Group<S>(w, block, g);
    Vec sum[kRows][kVectors][kChains];
    for (auto& row : sum) {
      for (auto& chains : row) std::fill(chains, chains + kChains, vzero());
    }
    for (int64_t line = 0; line < w.lines(); ++line, lines += kLineBytes, x += V::kSteps) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const UintLanes words = load_line(lines + v * VL * 4);
#pragma GCC unroll 8
        for (int i = 0; i < V::kSteps; ++i) {
          const auto q = V::values(words, i);
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
        if (V::kBase || !w.minima) s -= vset(base * inputs);
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

template <int kBits>
Inputs<float> arranged(Singles<kBits>, const GroupsCall& call, const float* x, const float* sums) {
  return {x, call.w.k, sums};
}

#ifdef __AVX512BF16__
Inputs<uint32_t> arranged(Pairs, const GroupsCall& call, const float*, const float* sums) {
  const int64_t stride = call.w.k / 2;
  auto* pairs = (uint32_t*)kept_memory<2>(size_t(call.m * stride) * sizeof(uint32_t));
  uint32_t* to = pairs;
  for (int64_t r = 0; r < call.m; ++r) {
    const auto* x = (const uint16_t*)call.x + r * call.x_stride;
    for (const auto* end = x + call.w.k; x < end; x += 8, to += Pairs::kSteps) {
      for (int i = 0; i < Pairs::kSteps; ++i) to[i] = x[i] | uint32_t(x[i + 4]) << 16;
    }
  }
  return {pairs, stride, sums};
}
#endif

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
  return arranged(V{}, call, x, sums);
}

template <class Y>
void write_rows(const GroupsCall& call, int64_t block, int64_t row, int rows,
                const float (*sums)[kBlockRows]) {
  const int64_t first = block * kBlockRows;
  const int64_t columns = std::min<int64_t>(kBlockRows, call.w.n - first);
  for (int r = 0; r < rows; ++r) {
    Y* y = (Y*)call.y + (row + r) * call.y_stride + first;
    for_vectors(columns, [&](int64_t i, auto lanes) {
      Vec v = load(sums[r] + i, lanes);
      if (call.bias) v += load(call.bias + first + i, lanes);
      store(y + i, v, lanes);
    });
  }
}

template <class V, class S>
void multiply_directly(const GroupsCall& call) {
  const Groups& w = call.w;
  const auto in = read_inputs<V>(call);
  const int64_t least = divide_up(kMinThreadBytes, w.block_bytes());
  const int64_t chunk = std::max(least, divide_up(w.blocks(), num_threads() * kChunksPerThread));
  parallel_chunks(w.blocks(), chunk, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t block = begin; block < end; ++block) {
      const char* from = (const char*)call.weights + block * w.block_bytes();
      for (int64_t row = 0; row < call.m; row += kTileRows) {
        const int rows = int(std::min<int64_t>(kTileRows, call.m - row));
        float sums[kTileRows][kBlockRows];
        multiply<V, S>(rows, w, from,
                       {in.x + row * in.stride, in.stride, in.sums + row * w.groups()}, sums);
        visit_float(int(call.y_dtype), [&](auto type) {
          write_rows<decltype(type)>(call, block, row, rows, sums);
        });
      }
    }
  });
}

// The nearest bfloat16, ties away from zero, in the upper half of each word. Weights are finite.
UintLanes rounded(Vec v) { return (UintLanes)v.v + 0x8000u; }

// One block to the plain layout of its type; lines that pad K are zero already.
template <int kBits, class S>
void unpack_block(const Groups& w, const char* block, char* to) {
  constexpr int kPerWord = 32 / kBits;
  constexpr bool kNarrow = sizeof(S) == 2;
  for (int64_t g = 0; g < w.groups(); ++g) {
    const auto [lines, d] = Group<S>(w, block, g);
    for (int v = 0; v < kVectors; ++v) {
      const Vec all = factor<S>(block, v), scale = vload(d + v * VL) * all;
      const Vec least = w.minima ? vload(d + kBlockRows + v * VL) * all
                                 : scale * vset(-float(w.offset));
      for (int64_t line = 0; line < w.lines(); ++line) {
        const UintLanes words = load_line(lines + line * kLineBytes + v * VL * 4);
        char* at = to + ((g * w.lines() + line) * kPerWord >> kNarrow) * kLineBytes + v * VL * 4;
#pragma GCC unroll 8
        for (int i = 0; i < kPerWord; i += 1 + kNarrow, at += kLineBytes) {
          const Vec first = vfma(value<kBits>(words, i), scale, least);
          if constexpr (kNarrow) {
            const Vec second = vfma(value<kBits>(words, i + 1), scale, least);
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
  const auto run = w.bits == 4 ? (w.narrow() ? unpack_block<4, f16> : unpack_block<4, float>)
                               : (w.narrow() ? unpack_block<8, f16> : unpack_block<8, float>);
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

// One row, the `lane`-th of its block.
template <class S>
void pack_row(const Groups& w, char* block, int64_t lane, const uint8_t* values, const float* d,
              const float* m) {
  const int per_word = 32 / w.bits;
  float factor = 1;
  if constexpr (sizeof(S) == 2) factor = ((float*)block)[lane] = row_factor(w, d, m);
  for (int64_t g = 0; g < w.groups(); ++g) {
    const Group<S> group(w, block, g);
    auto* words = (uint32_t*)group.lines + lane;
    for (int64_t line = 0; line < w.lines(); ++line, values += per_word) {
      uint32_t word = 0;
      for (int j = 0; j < per_word; ++j) word |= uint32_t(values[j]) << (w.bits * j);
      words[line * kBlockRows] = word;
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
  parallel_for(rows.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows.begin + i;
      char* block = (char*)packed + row / kBlockRows * w.block_bytes();
      const float* d = rows.d + i * w.groups();
      const float* m = rows.m ? rows.m + i * w.groups() : nullptr;
      const auto pack = w.narrow() ? pack_row<f16> : pack_row<float>;
      pack(w, block, row % kBlockRows, rows.values + i * w.k, d, m);
    }
  }, kBlockRows);
}

void linear_groups(const GroupsCall& call) {
  visit_float(int(call.y_dtype), [](auto) {});
  const bool narrow = call.w.narrow(), fours = call.w.bits == 4;
  if (call.m > (narrow ? kMaxDirectNarrowRows : kMaxDirectRows)) return multiply_unpacked(call);
  if (narrow) {
    fours ? multiply_directly<NarrowFours, f16>(call) : multiply_directly<Singles<8>, f16>(call);
  } else {
    fours ? multiply_directly<Singles<4>, float>(call) : multiply_directly<Singles<8>, float>(call);
  }
}

}  // namespace hotshoe::linear
