// The two matrix products of attention on AMX tiles, for bfloat16: 32 rows by 32 columns at a time.
//
// The cache's layout is that of a right-hand tile: 16 pairs of channels (of keys) by 16 keys (by
// 16 channels), so tiles are loaded straight from the blocks. Tiles 0 1 / 2 3 hold the sums of the
// first / second 16 rows, 4 and 5 those rows, 6 and 7 the two halves of the columns. Rows come in
// sixteens: scratch memory has room for as many, and the results of extra rows mean nothing.
#pragma once

#include <atomic>

#include "attention/tiles.h"
#include "linear/amx.h"

namespace hotshoe {

constexpr int kTileSteps = 16;  // pairs in a tile
constexpr int kTileKeys = 2 * kTileSteps;
constexpr int kTileWidth = 16;    // columns of a tile
constexpr int kMinTiledRows = 8;  // below, vectors read the cache as fast

#ifdef HOTSHOE_AMX

constexpr bool kHasTiles = true;

inline void release_tiles() { TILE_RELEASE(); }

// The compiler does not know that tile instructions read and write memory.
inline void tile_memory_barrier() { std::atomic_signal_fence(std::memory_order_seq_cst); }

inline void prefetch_tile(const bf16* from, int64_t step) {
  for (int i = 0; i < kTileSteps; ++i) __builtin_prefetch(from + i * step);
}

template <bool Tall>
void score_tiles(const ScoreJob<bf16, bf16>& job, int row, int column) {
  const bf16 *first = job.keys[column] + job.key_at, *second = job.keys[column + 1] + job.key_at;
  const bf16* q = job.q + row * job.q_stride;
  const int64_t q_bytes = job.q_stride * 2, key_bytes = job.key_step * 2;
  tile_memory_barrier();
  TILE_ZERO(0);
  TILE_ZERO(1);
  if (Tall) {
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  for (int step = 0; step < job.steps; step += kTileSteps) {
    const int64_t at = step * job.key_step;
    if (row == 0) {
      prefetch_tile(job.next[column] + job.next_at + at, job.key_step);
      prefetch_tile(job.next[column + 1] + job.next_at + at, job.key_step);
    }
    TILE_LOAD(6, first + at, key_bytes);
    TILE_LOAD(7, second + at, key_bytes);
    TILE_LOAD(4, q + step * 2, q_bytes);
    TILE_DOT_BF16(0, 4, 6);
    TILE_DOT_BF16(1, 4, 7);
    TILE_DROP(4);
    if (Tall) {
      TILE_LOAD(5, q + 16 * job.q_stride + step * 2, q_bytes);
      TILE_DOT_BF16(2, 5, 6);
      TILE_DOT_BF16(3, 5, 7);
      TILE_DROP(5);
    }
    TILE_DROP(6);
    TILE_DROP(7);
  }
  float* scores = job.scores + row * job.score_stride + column * kTileWidth;
  const int64_t score_bytes = job.score_stride * 4;
  TILE_STORE(0, scores, score_bytes);
  TILE_STORE(1, scores + kTileWidth, score_bytes);
  if (Tall) {
    scores += 16 * job.score_stride;
    TILE_STORE(2, scores, score_bytes);
    TILE_STORE(3, scores + kTileWidth, score_bytes);
  }
  tile_memory_barrier();
}

template <bool Tall>
void value_tiles(const ValueJob<bf16, bf16>& job, int row, int dim) {
  float* out = job.out + row * job.out_stride + dim;
  float* below = out + 16 * job.out_stride;
  const bf16* p = job.p + row * job.p_stride;
  const int64_t out_bytes = job.out_stride * 4, p_bytes = job.p_stride * 2;
  const int64_t value_bytes = job.value_step * 2;
  tile_memory_barrier();
  if (job.first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, out, out_bytes);
    TILE_LOAD(1, out + kTileWidth, out_bytes);
    if (Tall) {
      TILE_LOAD(2, below, out_bytes);
      TILE_LOAD(3, below + kTileWidth, out_bytes);
    }
  }
  for (int i = 0; i < job.num_segments; ++i) {
    for (int step = 0; step < job.segments[i].steps; step += kTileSteps) {
      const int64_t at = step * job.value_step + dim * 2;
      const bf16* values = job.segments[i].values + job.value_at + at;
      if (row == 0) {
        const bf16* next = job.after(i) + at;
        prefetch_tile(next, job.value_step);
        prefetch_tile(next + 2 * kTileWidth, job.value_step);
      }
      TILE_LOAD(6, values, value_bytes);
      TILE_LOAD(7, values + 2 * kTileWidth, value_bytes);
      TILE_LOAD(4, p, p_bytes);
      TILE_DOT_BF16(0, 4, 6);
      TILE_DOT_BF16(1, 4, 7);
      TILE_DROP(4);
      if (Tall) {
        TILE_LOAD(5, p + 16 * job.p_stride, p_bytes);
        TILE_DOT_BF16(2, 5, 6);
        TILE_DOT_BF16(3, 5, 7);
        TILE_DROP(5);
      }
      TILE_DROP(6);
      TILE_DROP(7);
      p += kTileKeys;
    }
  }
  TILE_STORE(0, out, out_bytes);
  TILE_STORE(1, out + kTileWidth, out_bytes);
  if (Tall) {
    TILE_STORE(2, below, out_bytes);
    TILE_STORE(3, below + kTileWidth, out_bytes);
  }
  tile_memory_barrier();
}

// As compute_scores, for an even number of columns of 16 keys.
inline void compute_scores_tiled(const ScoreJob<bf16, bf16>& job, int rows, int columns) {
  for (int column = 0; column < columns; column += 2) {
    for (int row = 0; row < rows; row += 32) {
      (rows - row > 16 ? score_tiles<true> : score_tiles<false>)(job, row, column);
    }
  }
}

// As accumulate_values, for segments of whole tiles and head_dim a multiple of 32. Weights are read
// once for each 32 channels: 32 rows of them stay near for as long as all channels take.
inline void accumulate_values_tiled(const ValueJob<bf16, bf16>& job, int rows) {
  for (int row = 0; row < rows; row += 32) {
    for (int dim = 0; dim < job.head_dim; dim += 2 * kTileWidth) {
      (rows - row > 16 ? value_tiles<true> : value_tiles<false>)(job, row, dim);
    }
  }
}

#else

constexpr bool kHasTiles = false;
inline void configure_tiles() {}
inline void release_tiles() {}

#endif

}  // namespace hotshoe
