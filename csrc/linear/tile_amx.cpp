// Kernels of bfloat16 and int8 weights on AMX tiles: up to 32 rows of x by 32 columns.
//
// Tiles 0 1 / 2 3 hold the sums of the first / second 16 rows, 4 and 5 those rows of x, 6 and 7
// the two blocks of W. One step over k takes 1 KiB of each strip of x and of each block. Rows of a
// strip that do not exist are multiplied too; their sums mean nothing. x passes the first-level
// cache by, which so keeps the span of W's panel that all rows meet.

#include "linear/amx.h"

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "linear/epilogue.h"

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
constexpr int64_t kXBytes = 512 * 1024;  // a quarter of a second-level cache that is shared
// 32 KiB of two blocks, of the 48 that the first-level cache has.
constexpr int64_t kMaxSpan = 256;

thread_local bool configured = false;

void configure() {
  if (!configured) configure_tiles();
  configured = true;
}

void finish() {
  if (configured) TILE_RELEASE();
  configured = false;
}

inline void prefetch_w(const Tile& t, int64_t step) {
  const int64_t bytes = kTileRows * t.prefetch_step;
  const char* ahead = t.prefetch + step * bytes;
  for (int64_t i = 0; i < bytes; i += kLineBytes) {
    __builtin_prefetch(ahead + i, 0, 2);
    __builtin_prefetch(ahead + i + t.block_bytes, 0, 2);
  }
}

// The tile instructions name their registers, hence a macro for the two kinds of product. The
// fences tell the compiler that they access memory.
#define DEFINE_RUN(NAME, TILE_DOT)                                                  \
  template <bool kTall, bool kWide>                                                 \
  void NAME(const Tile& t) {                                                        \
    constexpr int64_t kHalf = kTileRows * kSumStride;                               \
    const char *x = (const char*)t.x, *w = t.w;                                     \
    char* sums = (char*)t.sums;                                                     \
    const int64_t steps = divide_up(t.groups, kTileRows);                           \
    const int64_t rows_a_step = divide_up(t.before->rows, steps);                   \
    std::atomic_signal_fence(std::memory_order_seq_cst);                            \
    TILE_ZERO(0);                                                                   \
    TILE_ZERO(1);                                                                   \
    TILE_ZERO(2);                                                                   \
    TILE_ZERO(3);                                                                   \
    for (int64_t step = 0; step < steps; ++step) {                                  \
      TILE_LOAD_STREAMED(4, x, kLineBytes);                                         \
      TILE_LOAD(6, w, kLineBytes);                                                  \
      TILE_DOT(0, 4, 6);                                                            \
      if (kWide) {                                                                  \
        TILE_LOAD(7, w + t.block_bytes, kLineBytes);                                \
        TILE_DOT(1, 4, 7);                                                          \
      }                                                                             \
      TILE_DROP(4);                                                                 \
      if (kTall) {                                                                  \
        TILE_LOAD_STREAMED(5, x + t.x_stride, kLineBytes);                          \
        if (kWide) TILE_DOT(3, 5, 7);                                               \
      }                                                                             \
      if (kWide) TILE_DROP(7);                                                      \
      if (kTall) TILE_DOT(2, 5, 6);                                                 \
      TILE_DROP(6);                                                                 \
      if (kTall) TILE_DROP(5);                                                      \
      prefetch_w(t, step);                                                          \
      t.before->advance(rows_a_step);                                               \
      x += kStepBytes;                                                              \
      w += kStepBytes;                                                              \
    }                                                                               \
    std::atomic_signal_fence(std::memory_order_seq_cst);                            \
    TILE_STORE(0, sums, kSumStride);                                                \
    if (kWide) TILE_STORE(1, sums + kLineBytes, kSumStride);                        \
    if (kTall) TILE_STORE(2, sums + kHalf, kSumStride);                             \
    if (kTall && kWide) TILE_STORE(3, sums + kHalf + kLineBytes, kSumStride);       \
    std::atomic_signal_fence(std::memory_order_seq_cst);                            \
  }                                                                                 \
  void NAME(const Tile& t) {                                                        \
    configure();                                                                    \
    const bool tall = t.rows > kTileRows;                                           \
    if (t.blocks > 1) return tall ? NAME<true, true>(t) : NAME<false, true>(t);     \
    tall ? NAME<true, false>(t) : NAME<false, false>(t);                            \
  }

DEFINE_RUN(run_bf16, TILE_DOT_BF16)
DEFINE_RUN(run_int8, TILE_DOT_INT8)

constexpr Kernel kernel(Form form, bool float_sums, int64_t k_unit, void (*run)(const Tile&)) {
  return {form, 2 * kTileRows, 2, float_sums, k_unit, kTileRows, kXBytes, kMaxSpan, run, finish};
}
constexpr Kernel kBf16 = kernel(Form::bf16, true, kLineBytes / 2, run_bf16);
constexpr Kernel kInt8 = kernel(Form::s8, false, kLineBytes, run_int8);

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
