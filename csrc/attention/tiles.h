// The two matrix products of attention over register tiles: scores = Q K^T, out = out + P V.
//
// R query rows meet C vectors at a time; everything a tile touches but the cache lies in the
// caller's scratch memory. Nothing here knows requests, blocks or masks (attention.cpp does).
#pragma once

#include <type_traits>

#include "attention/dot.h"

namespace hotshoe {

// Rows of the largest register tile: R x 4 sums, 4 operands and a broadcast fit the registers.
constexpr int kTileRows = kVectorRegisters == 32 ? 6 : 3;

// Operands A meet what the cache keeps as S.
template <class A, class S>
struct ScoreJob {
  const A* q;  // [rows, q_stride]
  int64_t q_stride;
  const S* const* keys;     // address per column vector, its first group of channels
  const S* const* next;     // likewise, what to fetch meanwhile
  int64_t key_at, next_at;  // elements to add to these addresses
  int64_t key_step;         // elements from one group of channels to the next
  int steps;                // groups of channels
  float* scores;            // [rows, score_stride], column vectors `width` apart
  int64_t score_stride;
  int width;  // keys in a column vector: VL, or fewer when blocks are smaller
};

// A run of consecutive keys in one block.
template <class S>
struct Segment {
  const S* values;  // its first group of keys, channel 0
  int steps;        // groups of keys
};

template <class A, class S>
struct ValueJob {
  const A* p;  // [rows, p_stride], columns in the order of the segments' keys
  int64_t p_stride;
  const Segment<S>* segments;
  int num_segments;
  int64_t value_at;    // elements to add to the segments' addresses
  const S* next;       // what to fetch while the last of them is multiplied
  int64_t value_step;  // elements from one group of keys to the next
  float* out;          // [rows, out_stride]
  int64_t out_stride;
  int head_dim;
  bool first;  // nothing was added to `out` yet: what it holds means nothing

  // What to fetch while segment i is multiplied.
  const S* after(int i) const {
    return i + 1 < num_segments ? segments[i + 1].values + value_at : next;
  }
};

// Adds the products of R rows at `a` and the C vectors of each step, the first at b(0) .. b(C - 1).
// While step s of these is multiplied, step s of what begins at next(c) is fetched: blocks lie
// anywhere, and the processor foresees none.
template <class S, int R, int C, bool Whole, class A, class Address, class NextAddress>
inline __attribute__((always_inline)) void accumulate(
    Vec (&sum)[R][C], const A* a, int64_t a_stride, const Address& b, const NextAddress& next,
    int64_t b_step, int steps, int lanes) {
  using D = Dot<A, S>;
  for (int s = 0; s < steps; ++s) {
    typename D::B operand[C];
    for (int c = 0; c < C; ++c) {
      const S* address = b(c) + s * b_step;
      __builtin_prefetch(next(c) + s * b_step, 0, 2);  // the first-level cache takes fewer at once
      operand[c] = Whole ? D::load(address) : D::load_n(address, lanes);
    }
    for (int r = 0; r < R; ++r) {
      const auto value = D::broadcast(a + r * a_stride + s * D::pack);
      for (int c = 0; c < C; ++c) {
        sum[r][c] = D::multiply_add(value, operand[c], sum[r][c]);
      }
    }
  }
}

template <int R, int C, bool Whole, class A, class S>
void score_tile(const ScoreJob<A, S>& job, int row, int column) {
  Vec sum[R][C];
  const S *keys[C], *next[C];
  for (int c = 0; c < C; ++c) {
    keys[c] = job.keys[column + c] + job.key_at;
    next[c] = job.next[column + c] + job.next_at;
  }
  for (auto& line : sum) {
    for (Vec& v : line) v = vzero();
  }
  accumulate<S, R, C, Whole>(
      sum, job.q + row * job.q_stride, job.q_stride, [&](int c) { return keys[c]; },
      [&](int c) { return next[c]; }, job.key_step, job.steps, job.width);
  for (int r = 0; r < R; ++r) {
    float* scores = job.scores + (row + r) * job.score_stride + column * job.width;
    for (int c = 0; c < C; ++c) vstore(scores + c * job.width, sum[r][c]);
  }
}

template <int R, int C, bool Whole, class A, class S>
void value_tile(const ValueJob<A, S>& job, int row, int dim) {
  constexpr int pack = Dot<A, S>::pack;
  Vec sum[R][C];
  for (int r = 0; r < R; ++r) {
    const float* out = job.out + (row + r) * job.out_stride + dim;
    for (int c = 0; c < C; ++c) sum[r][c] = job.first ? vzero() : vload(out + c * VL);
  }
  const A* p = job.p + row * job.p_stride;
  for (int i = 0; i < job.num_segments; ++i) {
    const Segment<S>& segment = job.segments[i];
    const S* values = segment.values + job.value_at + dim * pack;
    const S* next = job.after(i) + dim * pack;
    accumulate<S, R, C, Whole>(
        sum, p, job.p_stride, [&](int c) { return values + c * VL * pack; },
        [&](int c) { return next + c * VL * pack; }, job.value_step, segment.steps,
        job.head_dim - dim);
    p += segment.steps * pack;
  }
  for (int r = 0; r < R; ++r) {
    float* out = job.out + (row + r) * job.out_stride + dim;
    for (int c = 0; c < C; ++c) vstore(out + c * VL, sum[r][c]);
  }
}

// Calls f(rows in the tile as a constant, first row) on tiles that cover [row, rows).
template <int R, class F>
void for_row_tiles(int row, int rows, const F& f) {
  for (; rows - row >= R; row += R) f(std::integral_constant<int, R>{}, row);
  if constexpr (R > 1) for_row_tiles<R == 6 ? 4 : R == 3 ? 2 : R / 2>(row, rows, f);
}

// Column vectors that compute_scores takes at once.
constexpr int kScoreColumns = 4;

// Scores of all rows against up to kScoreColumns column vectors. Addresses must be there for as
// many (repeats will do), and score rows have the room.
template <class A, class S>
void compute_scores(const ScoreJob<A, S>& job, int rows, int columns) {
  if (job.width < VL) {
    for (int column = 0; column < columns; ++column) {
      for_row_tiles<kTileRows>(0, rows, [&](auto tile_rows, int row) {
        score_tile<tile_rows(), 1, false>(job, row, column);
      });
    }
    return;
  }
  for_row_tiles<kTileRows>(0, rows, [&](auto tile_rows, int row) {
    score_tile<tile_rows(), kScoreColumns, true>(job, row, 0);
  });
}

template <int C, bool Whole, int R = kTileRows, class A, class S>
void value_columns(const ValueJob<A, S>& job, int rows, int dim) {
  for_row_tiles<R>(0, rows, [&](auto tile_rows, int row) {
    value_tile<tile_rows(), C, Whole>(job, row, dim);
  });
}

// out = out + P V, or P V, for all rows and channels.
template <class A, class S>
void accumulate_values(const ValueJob<A, S>& job, int rows) {
  int dim = 0;
  if constexpr (kVectorRegisters == 32) {
    constexpr int kFew = 2;  // rows that leave registers for wider tiles, which read longer runs
    for (; rows <= kFew && job.head_dim - dim >= 8 * VL; dim += 8 * VL) {
      value_columns<8, true, kFew>(job, rows, dim);
    }
  }
  for (; job.head_dim - dim >= 4 * VL; dim += 4 * VL) value_columns<4, true>(job, rows, dim);
  if (job.head_dim - dim >= 2 * VL) {
    value_columns<2, true>(job, rows, dim);
    dim += 2 * VL;
  }
  if (job.head_dim - dim >= VL) {
    value_columns<1, true>(job, rows, dim);
    dim += VL;
  }
  if (dim < job.head_dim) value_columns<1, false>(job, rows, dim);
}

}  // namespace hotshoe
