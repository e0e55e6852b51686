// Kernels of bfloat16 and int8 weights on AMX tiles: up to 32 rows of x by 32 columns.
//
// Tiles 0 1 / 2 3 hold the sums of the first / second 16 rows, 4 and 5 those rows of x, 6 and 7
// the two blocks of W. One step over k takes 64 bytes of every row of x and 1 KiB of each block.

#include "linear/amx.h"

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "linear/tile.h"

#if defined(HOTSHOE_AMX) && !defined(HOTSHOE_AMX_EMULATED) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hotshoe::linear {

#ifdef HOTSHOE_AMX
namespace {

constexpr int kTileRows = 16;
constexpr int64_t kSumStride = kTileCols * 4;
constexpr int64_t kStepBytes = kTileRows * kLineBytes;  // of one block of W

thread_local int configured_rows = 0;

// Shapes the tiles for so many rows of x. Configuring is slow, so only upon a change.
void configure(int rows) {
  if (rows == configured_rows) return;
  const int first = rows < kTileRows ? rows : kTileRows, second = rows - first;
  const int tile_rows[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = uint8_t(tile_rows[i]);
    config.row_bytes[i] = tile_rows[i] ? kLineBytes : 0;
  }
  TILE_CONFIGURE(config);
  configured_rows = rows;
}

void finish() {
  TILE_RELEASE();
  configured_rows = 0;
}

void prefetch_step(const Tile& t, int64_t step) {
  const char* ahead = t.prefetch + step * kTileRows * t.prefetch_step;
  for (int b = 0; b < t.blocks; ++b) {
    for (int i = 0; i < kTileRows; ++i) {
      __builtin_prefetch(ahead + b * t.block_bytes + i * t.prefetch_step, 0, 2);
    }
  }
}

// The tile instructions name their registers, hence a macro for the two kinds of product.
#define DEFINE_RUN(NAME, TILE_DOT)                                         \
  void NAME(const Tile& t) {                                               \
    configure(t.rows);                                                     \
    const bool tall = t.rows > kTileRows, wide = t.blocks > 1;             \
    const char* x = (const char*)t.x;                                      \
    const char* w = t.w;                                                   \
    TILE_ZERO(0);                                                          \
    TILE_ZERO(1);                                                          \
    if (tall) {                                                            \
      TILE_ZERO(2);                                                        \
      TILE_ZERO(3);                                                        \
    }                                                                      \
    for (int64_t step = 0; step * kTileRows < t.groups; ++step) {          \
      prefetch_step(t, step);                                              \
      TILE_LOAD(6, w, kLineBytes);                                         \
      TILE_LOAD(4, x, t.x_stride);                                         \
      TILE_DOT(0, 4, 6);                                                   \
      if (wide) {                                                          \
        TILE_LOAD(7, w + t.block_bytes, kLineBytes);                       \
        TILE_DOT(1, 4, 7);                                                 \
      }                                                                    \
      if (tall) {                                                          \
        TILE_LOAD(5, x + kTileRows * t.x_stride, t.x_stride);              \
        TILE_DOT(2, 5, 6);                                                 \
        if (wide) TILE_DOT(3, 5, 7);                                       \
      }                                                                    \
      x += kLineBytes;                                                     \
      w += kStepBytes;                                                     \
    }                                                                      \
    char* sums = (char*)t.sums;                                            \
    TILE_STORE(0, sums, kSumStride);                                       \
    if (wide) TILE_STORE(1, sums + kLineBytes, kSumStride);                \
    if (tall) {                                                            \
      TILE_STORE(2, sums + kTileRows * kSumStride, kSumStride);            \
      if (wide) TILE_STORE(3, sums + kTileRows * kSumStride + kLineBytes, kSumStride); \
    }                                                                      \
  }

DEFINE_RUN(run_bf16, TILE_DOT_BF16)
DEFINE_RUN(run_int8, TILE_DOT_INT8)

constexpr Kernel kBf16 = {Form::bf16, 32, 2, true, kLineBytes / 2, run_bf16, finish};
constexpr Kernel kInt8 = {Form::s8, 32, 2, false, kLineBytes, run_int8, finish};

}  // namespace

void prepare_process() {
#if !defined(HOTSHOE_AMX_EMULATED) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    throw std::system_error(errno, std::generic_category(), "the system refuses AMX tiles");
  }
#endif
}

const Kernel* amx_kernel(DType weights) {
  if (weights == DType::f32) return nullptr;
  return weights == DType::bf16 ? &kBf16 : &kInt8;
}

#else

void prepare_process() {}
const Kernel* amx_kernel(DType) { return nullptr; }

#endif

}  // namespace hotshoe::linear
