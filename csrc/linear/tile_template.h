// Register-tiled kernel over any instruction set, given the arithmetic of one group of k.
//
// `Math` supplies: Sum, X and W register types; `kSums`, the Sum registers that hold a block's 16
// columns; kXBytes, the bytes of x per group; zero(), load_x(p), load_w(p, j), dot(sum, x, w) and
// store(p, sum). Both loops over registers unroll completely.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "common/simd.h"
#include "linear/tile.h"

namespace hotshoe::linear {

template <class Math, int kRows, int kBlocks>
void run_tile(const Tile& t) {
  constexpr int kCols = kBlocks * Math::kSums;
  typename Math::Sum sum[kRows][kCols];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kCols; ++c) sum[r][c] = Math::zero();
  }
  const char* x = (const char*)t.x;
  const char* w = t.w;
  const char* ahead = t.prefetch;
  for (int64_t g = 0; g < t.groups; ++g) {
    typename Math::W weights[kCols];
#pragma GCC unroll 32
    for (int b = 0; b < kBlocks; ++b) {
      __builtin_prefetch(ahead + b * t.block_bytes, 0, 2);
#pragma GCC unroll 32
      for (int j = 0; j < Math::kSums; ++j) {
        weights[b * Math::kSums + j] = Math::load_w(w + b * t.block_bytes, j);
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      const typename Math::X values = Math::load_x(x + r * t.x_stride);
#pragma GCC unroll 32
      for (int c = 0; c < kCols; ++c) sum[r][c] = Math::dot(sum[r][c], values, weights[c]);
    }
    x += Math::kXBytes;
    w += kLineBytes;
    ahead += t.prefetch_step;
  }
  auto* out = (typename Math::Scalar*)t.sums;
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kCols; ++c) {
      Math::store(out + r * kTileCols + c * (kBlockRows / Math::kSums), sum[r][c]);
    }
  }
}

// Rows of the tile whose sums fill the registers that W and one x leave free.
template <class Math>
constexpr int tile_rows(int blocks) {
  constexpr int kRegister = VL * 4;
  const int w = blocks * Math::kSums * int(sizeof(typename Math::W)) / kRegister;
  const int x = int(sizeof(typename Math::X)) / kRegister;
  return std::max(2, (kVectorRegisters - w - x) / (blocks * Math::kSums));
}

// Calls the instantiation for t.rows (1 .. kTileRows) and t.blocks (1 .. kTileBlocks).
template <class Math, int kTileRows, int kTileBlocks>
void dispatch_tile(const Tile& t) {
  using Fn = void (*)(const Tile&);
  static constexpr auto table = []<int... i>(std::integer_sequence<int, i...>) {
    return std::array<Fn, sizeof...(i)>{run_tile<Math, i % kTileRows + 1, i / kTileRows + 1>...};
  }(std::make_integer_sequence<int, kTileRows * kTileBlocks>{});
  table[size_t((t.blocks - 1) * kTileRows + t.rows - 1)](t);
}

template <class Math>
constexpr Kernel register_kernel(Form form, bool float_sums, int64_t k_unit) {
  // Two blocks share each value of x, but need twice the registers.
  constexpr int kBlocks = VL == kBlockRows ? 2 : 1, kRows = tile_rows<Math>(kBlocks);
  constexpr int64_t kXBytes = 512 * 1024;
  return {form, kRows, kBlocks, float_sums, k_unit, 1, kXBytes, 0,
          dispatch_tile<Math, kRows, kBlocks>, nullptr};
}

}  // namespace hotshoe::linear
