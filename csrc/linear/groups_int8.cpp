// Products of grouped weights of four bits with rows of x that are rounded to int8.
//
// Sums of integers run over a group, are exact, and meet its scale. A word of W holds eight values:
// those at even places are four bytes once others are masked, and so are those at odd ones. x lies
// in that order, each eight values of it beside those of the rows that share the unpacking of W.

#include <array>
#include <type_traits>
#include <utility>

#include "linear/group_blocks.h"
#include "linear/linear.h"
#include "linear/quantize.h"
#include "linear/tile.h"

#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif

namespace hotshoe::linear {
namespace {

constexpr int kPerWord = 8, kOffset = 8;
// Rows whose sums fill the registers that W and x leave free.
constexpr int kTileRows = kVectorRegisters >= 32 ? 12 : 6;
// Of x, which stay in the second-level cache beside a block of W.
constexpr int64_t kPartBytes = 512 * 1024;
// A thread that rounds rows of x is worth waking from about so many elements.
constexpr int64_t kMinThreadElements = 32 * 1024;
// Rows up to which tiles of bfloat16, which need W unpacked, are slower.
constexpr int64_t kMaxRowsBeforeTiles = 32;

#ifdef __AVX512VNNI__

struct Sum {
  __m512i even, odd;
};

Sum first_sum(int32_t start) { return {_mm512_set1_epi32(start), _mm512_setzero_si512()}; }

inline void add(Sum& sum, UintLanes even, UintLanes odd, const int32_t* x) {
  sum.even = _mm512_dpbusd_epi32(sum.even, (__m512i)even, _mm512_set1_epi32(x[0]));
  sum.odd = _mm512_dpbusd_epi32(sum.odd, (__m512i)odd, _mm512_set1_epi32(x[1]));
}

IntLanes whole(const Sum& sum) { return (IntLanes)_mm512_add_epi32(sum.even, sum.odd); }

#else

typedef IntLanes Sum;

Sum first_sum(int32_t start) { return Sum{} + start; }
IntLanes whole(const Sum& sum) { return sum; }

#if defined(__AVX2__) && !defined(__AVX512F__)

// Four products of 15 by 127 fit 16 bits.
inline void add(Sum& sum, UintLanes even, UintLanes odd, const int32_t* x) {
  const __m256i a = _mm256_maddubs_epi16((__m256i)even, _mm256_set1_epi32(x[0]));
  const __m256i b = _mm256_maddubs_epi16((__m256i)odd, _mm256_set1_epi32(x[1]));
  sum += (IntLanes)_mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
}

#elif defined(__ARM_FEATURE_DOTPROD)

inline void add(Sum& sum, UintLanes even, UintLanes odd, const int32_t* x) {
  static_assert(sizeof(Sum) == sizeof(int32x4_t));
  int32x4_t s = (int32x4_t)sum;
  s = vdotq_s32(s, (int8x16_t)even, vreinterpretq_s8_s32(vdupq_n_s32(x[0])));
  s = vdotq_s32(s, (int8x16_t)odd, vreinterpretq_s8_s32(vdupq_n_s32(x[1])));
  sum = (IntLanes)s;
}

#else

typedef int16_t Shorts __attribute__((vector_size(VL * 4)));

// Four bytes of W by four of x, as two pairs of 16 bits that are added.
inline Shorts products(UintLanes w, int32_t x) {
  const Shorts four = (Shorts)(IntLanes{} + x);
  const Shorts first = (Shorts)(w & 0x00ff00ffu), second = (Shorts)((w >> 8) & 0x00ff00ffu);
  return first * ((four << 8) >> 8) + second * (four >> 8);
}

// Four products of 15 by 127 fit 16 bits.
inline void add(Sum& sum, UintLanes even, UintLanes odd, const int32_t* x) {
  const IntLanes both = (IntLanes)(products(even, x[0]) + products(odd, x[1]));
  sum += ((both << 16) >> 16) + (both >> 16);
}

#endif
#endif

// Sums of rows by as many rows of W as a vector has lanes.
template <int kRows>
struct RowSums {
  Sum sum[kRows];

  template <class F>
  explicit RowSums(const F& start) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r] = first_sum(start(r));
  }
  void add_word(UintLanes even, UintLanes odd, const int32_t* x) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) add(sum[r], even, odd, x + 2 * r);
  }
  IntLanes row(int r) const { return whole(sum[r]); }
};

#ifdef __ARM_FEATURE_MATMUL_INT8

// The same by matrices, each of two rows of x by two of W.
template <int kRows>
struct MatrixSums {
  static constexpr int kPairs = (kRows + 1) / 2;
  int32x4_t sum[kPairs][2];

  template <class F>
  explicit MatrixSums(const F& start) {
    for (int p = 0; p < kPairs; ++p) {
      const int32_t first = start(2 * p), second = start(std::min(2 * p + 1, kRows - 1));
      sum[p][0] = sum[p][1] = int32x4_t{first, first, second, second};
    }
  }
  void add_word(UintLanes even, UintLanes odd, const int32_t* x) {
    const auto low = (int8x16_t)vzip1q_u32((uint32x4_t)even, (uint32x4_t)odd);
    const auto high = (int8x16_t)vzip2q_u32((uint32x4_t)even, (uint32x4_t)odd);
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; ++p) {
      const auto* rows = (const int64_t*)(x + 4 * p);
      const auto both = (int8x16_t)(2 * p + 1 < kRows ? vld1q_s64(rows) : vld1q_dup_s64(rows));
      sum[p][0] = vmmlaq_s32(sum[p][0], both, low);
      sum[p][1] = vmmlaq_s32(sum[p][1], both, high);
    }
  }
  IntLanes row(int r) const {
    const auto a = (int64x2_t)sum[r / 2][0], b = (int64x2_t)sum[r / 2][1];
    return (IntLanes)(r % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
  }
};
template <int kRows>
using Sums = std::conditional_t<(kRows > 1), MatrixSums<kRows>, RowSums<kRows>>;

#else
template <int kRows>
using Sums = RowSums<kRows>;
#endif

// Rows of x that are worked on together.
struct Strip {
  const int32_t* x;     // [k / 8][rows][2]: values at even places, then at odd ones
  const int32_t* sums;  // [groups][rows] of values
  const float* scales;  // [rows]
};

template <class S, int kRows>
void multiply(const Groups& w, const char* block, Strip in, float (*out)[kBlockRows]) {
  for (int r = 0; r < kRows; ++r) std::fill(out[r], out[r] + kBlockRows, 0.0f);
  for (int64_t g = 0; g < w.groups(); ++g, in.sums += kRows) {
    const auto [lines, d] = Group<S>(w, block, g);
    for (int v = 0; v < kVectors; ++v) {
      Sums<kRows> sums([&](int r) { return w.minima ? 0 : -kOffset * in.sums[r]; });
      const char* from = lines + v * VL * 4;
      const int32_t* x = in.x;
      for (int64_t line = 0; line < w.lines(); ++line, from += kLineBytes, x += 2 * kRows) {
        if (v == 0) __builtin_prefetch(from + kAhead);
        UintLanes words[1];
        load_lines(from, words);
        const UintLanes even = words[0] & 0x0f0f0f0fu, odd = (words[0] >> 4) & 0x0f0f0f0fu;
        sums.add_word(even, odd, x);
      }
      const Vec scale = vload(d + v * VL);
      const Vec least = w.minima ? vload(d + kBlockRows + v * VL) : vzero();
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float* to = out[r] + v * VL;
        Vec total = vload(to);
        if (w.minima) total = vfma(least, vset(float(in.sums[r])), total);
        const Vec value = {(decltype(Vec::v))__builtin_convertvector(sums.row(r), FloatLanes)};
        vstore(to, vfma(value, scale, total));
      }
    }
    in.x += w.lines() * 2 * kRows;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = out[r] + v * VL;
      vstore(to, vload(to) * (factor<S>(block, v) * vset(in.scales[r])));
    }
  }
}

// By the number of rows less one.
template <class S>
constexpr auto kMultiply = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array{multiply<S, i + 1>...};
}(std::make_integer_sequence<int, kTileRows>{});

// All rows of x, in strips as even as can be.
struct Rows {
  int64_t count, strips;
  int32_t *x, *sums;
  float* scales;

  Rows(const GroupsCall& call) : count(call.m), strips(divide_up(call.m, kTileRows)) {
    const Groups& w = call.w;
    const int64_t words = count * (w.k / 4);
    x = (int32_t*)kept_memory<0>(size_t(words + count * (w.groups() + 1)) * 4);
    sums = x + words;
    scales = (float*)(sums + count * w.groups());
  }

  int64_t begin(int64_t strip) const { return count * strip / strips; }
};

// The bytes at even places, in order.
uint64_t even_bytes(uint64_t v) {
  v &= 0x00ff00ff00ff00ffu;
  v = (v | v >> 8) & 0x0000ffff0000ffffu;
  return (v | v >> 16) & 0xffffffffu;
}

template <class X>
void round_strip(const GroupsCall& call, const Rows& rows, int64_t strip) {
  const Groups& w = call.w;
  const int64_t first = rows.begin(strip), count = rows.begin(strip + 1) - first;
  auto* values = (int8_t*)thread_scratch(size_t(w.k));
  for (int64_t r = 0; r < count; ++r) {
    const X* row = (const X*)call.x + (first + r) * call.x_stride;
    const float scale = rows.scales[first + r] = row_scale(row, w.k);
    quantize_row(row, w.k, scale, values);
    auto* to = (uint64_t*)(rows.x + first * (w.k / 4)) + r;
    for (int64_t i = 0; i < w.k; i += kPerWord, to += count) {
      uint64_t eight;
      std::memcpy(&eight, values + i, sizeof eight);
      *to = even_bytes(eight) | even_bytes(eight >> 8) << 32;
    }
    int32_t* sums = rows.sums + first * w.groups() + r;
    for (int64_t g = 0; g < w.groups(); ++g) {
      int32_t sum = 0;
      for (int64_t i = 0; i < w.group; ++i) sum += values[g * w.group + i];
      sums[g * count] = sum;
    }
  }
}

template <class S>
void multiply_rows(const GroupsCall& call) {
  const Groups& w = call.w;
  const Rows rows(call);
  visit_float(int(w.x), [&](auto type) {
    parallel_for(rows.strips, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) round_strip<decltype(type)>(call, rows, s);
    }, divide_up(kMinThreadElements, w.k * kTileRows));
  });
  const int64_t per_part = std::max<int64_t>(kPartBytes / (w.k * kTileRows), 1);
  for_blocks(w, divide_up(rows.strips, per_part), [&](int64_t block, int64_t part) {
    const char* from = (const char*)call.weights + block * w.block_bytes();
    const int64_t end = std::min((part + 1) * per_part, rows.strips);
    for (int64_t s = part * per_part; s < end; ++s) {
      const int64_t row = rows.begin(s), count = rows.begin(s + 1) - row;
      float out[kTileRows][kBlockRows];
      const Strip strip{rows.x + row * (w.k / 4), rows.sums + row * w.groups(), rows.scales + row};
      kMultiply<S>[size_t(count - 1)](w, from, strip, out);
      visit_float(int(call.y_dtype), [&](auto type) {
        write_rows<decltype(type)>(call, block, row, int(count), out);
      });
    }
  });
}

// Rounded rows as bfloat16, which tiles multiply by plain weights.
void multiply_on_tiles(GroupsCall call) {
  const int64_t k = call.w.k;
  auto* rounded = (bf16*)kept_memory<3>(size_t(call.m * k) * sizeof(bf16));
  parallel_for(call.m, [&](int64_t begin, int64_t end) {
    auto* values = (int8_t*)thread_scratch(size_t(k));
    for (int64_t r = begin; r < end; ++r) {
      const bf16* row = (const bf16*)call.x + r * call.x_stride;
      const float scale = row_scale(row, k);
      quantize_row(row, k, scale, values);
      for (int64_t i = 0; i < k; ++i) rounded[r * k + i] = from_float<bf16>(values[i] * scale);
    }
  }, divide_up(kMinThreadElements, k));
  call.x = rounded;
  call.x_stride = k;
  linear_groups(call);
}

}  // namespace

void linear_groups_int8(const GroupsCall& call) {
  visit_float(int(call.y_dtype), [](auto) {});
  const Groups& w = call.w;
  if (w.bits != 4 || w.table) {
    throw std::invalid_argument("x of int8 is multiplied by integers of 4 bits");
  }
  if (!w.minima && w.offset != kOffset) throw std::invalid_argument("the offset of 4 bits is 8");
  if (call.m == 0) return;
  if (w.narrow() && amx_kernel(w.x) && call.m > kMaxRowsBeforeTiles) return multiply_on_tiles(call);
  w.narrow() ? multiply_rows<f16>(call) : multiply_rows<float>(call);
}

}  // namespace hotshoe::linear
