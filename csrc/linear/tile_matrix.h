// Tiles by Armv8.6's matrix instructions: two rows of x by two rows of W, eight bytes of each.
//
// Two lines of a block have eight bytes of each of its rows, which are put side by side when they are
// loaded. A single row takes dot products, which give the same bits. `Math` supplies: Scalar, Sum,
// multiply(sum, x, w), and the arithmetic Dot of run_tile.
#pragma once

#include <arm_neon.h>

#include "linear/tile_template.h"

namespace hotshoe::linear {

constexpr int kMatrixRows = 6;  // their sums fill the registers that W and x leave free

template <class Math, int kRows>
void run_matrix_tile(const Tile& t) {
  constexpr int kPairs = (kRows + 1) / 2, kCols = kBlockRows / 2;
  typename Math::Sum sum[kPairs][kCols]{};  // each: of a row of x two, and of the next row two
  const char* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = (const char*)t.x + r * t.x_stride;
  const char *w = t.w, *ahead = t.prefetch;
  const int64_t groups = t.groups, step = t.prefetch_step;
  for (int64_t g = 0; g < groups; g += 2, w += 2 * kLineBytes, ahead += 2 * step) {
    __builtin_prefetch(ahead, 0, 2);
    __builtin_prefetch(ahead + step, 0, 2);
    uint8x16_t values[kPairs];
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) {
      const auto* first = (const uint8_t*)x[2 * p] + g * kGroupBytes;
      const auto* second = (const uint8_t*)x[std::min(2 * p + 1, kRows - 1)] + g * kGroupBytes;
      values[p] = vcombine_u8(vld1_u8(first), vld1_u8(second));
    }
#pragma GCC unroll 8
    for (int c = 0; c < kCols; c += 2) {
      asm volatile("" ::: "memory");  // all of W at once would take registers from sums
      const auto* line = (const uint8_t*)w + c * 2 * kGroupBytes;
      const auto low = vreinterpretq_u32_u8(vld1q_u8(line));
      const auto high = vreinterpretq_u32_u8(vld1q_u8(line + kLineBytes));
      const auto first = vreinterpretq_u8_u32(vzip1q_u32(low, high));
      const auto second = vreinterpretq_u8_u32(vzip2q_u32(low, high));
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) {
        sum[p][c] = Math::multiply(sum[p][c], values[p], first);
        sum[p][c + 1] = Math::multiply(sum[p][c + 1], values[p], second);
      }
    }
  }
  auto* out = (uint64_t*)t.sums;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; c += 2) {
      const auto a = (uint64x2_t)sum[r / 2][c], b = (uint64x2_t)sum[r / 2][c + 1];
      vst1q_u64(out + (r * kTileCols + 2 * c) / 2, r % 2 ? vzip2q_u64(a, b) : vzip1q_u64(a, b));
    }
  }
}

// Calls the instantiation for t.rows (1 .. kMatrixRows).
template <class Math>
void dispatch_matrix_tile(const Tile& t) {
  static constexpr auto table = []<int... i>(std::integer_sequence<int, i...>) {
    return std::array<void (*)(const Tile&), sizeof...(i) + 1>{run_tile<typename Math::Dot, 1, 1>,
                                                               run_matrix_tile<Math, i + 2>...};
  }(std::make_integer_sequence<int, kMatrixRows - 1>{});
  table[size_t(t.rows - 1)](t);
}

template <class Math>
constexpr Kernel matrix_kernel(Form form, bool float_sums) {
  constexpr int64_t kXBytes = 512 * 1024;
  return {form, kMatrixRows, 1, float_sums, form == Form::bf16 ? 4 : 8, 1, kXBytes, 0,
          dispatch_matrix_tile<Math>, nullptr};
}

}  // namespace hotshoe::linear
