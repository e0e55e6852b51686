// The handful of AMX tile operations that the kernels use, or their emulation.
//
// A build with HOTSHOE_AMX_EMULATED runs the same kernel code on any processor, with tiles in
// memory: that is how the AMX path is tested where the hardware has none.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HOTSHOE_AMX_EMULATED)
#define HOTSHOE_AMX 1
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HOTSHOE_AMX 1
#include <immintrin.h>
#endif

#ifdef HOTSHOE_AMX

namespace hotshoe {

// Palette 1: eight tiles of up to 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace hotshoe

#ifndef HOTSHOE_AMX_EMULATED

// The intrinsics do not tell the compiler what memory they read: the barriers do.
#define TILE_CONFIGURE(config)            \
  do {                                    \
    asm volatile("" ::: "memory");        \
    _tile_loadconfig(&(config));          \
  } while (0)
#define TILE_LOAD(tile, address, stride) _tile_loadd(tile, address, stride)
#define TILE_LOAD_STREAMED(tile, address, stride) _tile_stream_loadd(tile, address, stride)
#define TILE_STORE(tile, address, stride) _tile_stored(tile, address, stride)
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_DOT_BF16(sum, a, b) _tile_dpbf16ps(sum, a, b)
#define TILE_DOT_INT8(sum, a, b) _tile_dpbssd(sum, a, b)
#define TILE_RELEASE() _tile_release()

#else

#include <cstdlib>

#include "common/dtype.h"

namespace hotshoe::emulated {

struct TileRegisters {
  TileConfig config;
  alignas(64) uint8_t data[8][16][64];
};
inline thread_local TileRegisters tiles;

// What the processor answers with an undefined-instruction fault.
inline void require(bool valid) {
  if (!valid) std::abort();
}

inline void zero(int tile) {
  require(tiles.config.rows[tile] > 0);
  std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

inline void load(int tile, const void* address, int64_t stride) {
  zero(tile);
  for (int r = 0; r < tiles.config.rows[tile]; ++r) {
    std::memcpy(tiles.data[tile][r], (const char*)address + r * stride,
                tiles.config.row_bytes[tile]);
  }
}

inline void store(int tile, void* address, int64_t stride) {
  require(tiles.config.rows[tile] > 0);
  for (int r = 0; r < tiles.config.rows[tile]; ++r) {
    std::memcpy((char*)address + r * stride, tiles.data[tile][r], tiles.config.row_bytes[tile]);
  }
}

// sum[m][n] += a[m][k] * b[k / group][n * group + k % group], as the manual defines it.
template <class T, class Sum, class Multiply>
void dot(int sum, int a, int b, Multiply multiply) {
  constexpr int kGroup = 4 / sizeof(T);
  const TileConfig& config = tiles.config;
  require(config.rows[sum] > 0 && config.rows[a] == config.rows[sum]);
  require(config.row_bytes[b] == config.row_bytes[sum]);
  require(config.rows[b] * 4 == config.row_bytes[a]);
  auto& sums = (Sum(&)[16][16])tiles.data[sum];
  const auto& left = (T(&)[16][16 * kGroup])tiles.data[a];
  const auto& right = (T(&)[16][16 * kGroup])tiles.data[b];
  for (int m = 0; m < config.rows[sum]; ++m) {
    for (int k = 0; k < config.row_bytes[a] / 4; ++k) {
      for (int n = 0; n < config.row_bytes[sum] / 4; ++n) {
        for (int i = 0; i < kGroup; ++i) {
          sums[m][n] += multiply(left[m][k * kGroup + i], right[k][n * kGroup + i]);
        }
      }
    }
  }
}

inline void dot_bf16(int sum, int a, int b) {
  dot<bf16, float>(sum, a, b, [](bf16 x, bf16 y) { return to_float(x) * to_float(y); });
}

inline void dot_int8(int sum, int a, int b) {
  dot<int8_t, int32_t>(sum, a, b, [](int8_t x, int8_t y) { return int32_t(x) * y; });
}

}  // namespace hotshoe::emulated

#define TILE_CONFIGURE(config) (hotshoe::emulated::tiles.config = (config))
#define TILE_LOAD(tile, address, stride) hotshoe::emulated::load(tile, address, stride)
#define TILE_LOAD_STREAMED(tile, address, stride) hotshoe::emulated::load(tile, address, stride)
#define TILE_STORE(tile, address, stride) hotshoe::emulated::store(tile, address, stride)
#define TILE_ZERO(tile) hotshoe::emulated::zero(tile)
#define TILE_DOT_BF16(sum, a, b) hotshoe::emulated::dot_bf16(sum, a, b)
#define TILE_DOT_INT8(sum, a, b) hotshoe::emulated::dot_int8(sum, a, b)
#define TILE_RELEASE() (hotshoe::emulated::tiles.config = hotshoe::TileConfig{})

#endif

// Says that a tile has met its last product. Loads and products wait for each other where few names
// are left to rename tiles to, as when a core's other hardware thread is awake; a zeroed tile holds
// none. See docs/decisions/0026-tiles-zeroed-after-their-last-product.md.
#define TILE_DROP(tile) TILE_ZERO(tile)

namespace hotshoe {

// Whole tiles always: extra rows cost little beside what they are multiplied with.
inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = 16;
    config.row_bytes[i] = 64;
  }
  TILE_CONFIGURE(config);
}

}  // namespace hotshoe

#endif
