// Scratch memory of one attention task.
#pragma once

#include <algorithm>

#include "attention/amx_tiles.h"
#include "attention/softmax.h"
#include "common/parallel.h"

namespace hotshoe {

constexpr int kChunk = 512;                // keys between two updates of the row states
constexpr int kScoreStride = kChunk + VL;  // not a power of two: rows would share cache sets
constexpr int kMaxColumns = kChunk / std::min(VL, 8);
constexpr int kWideStride = 2 * (kChunk + 16);  // likewise, of widened keys: a pair of each

constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// How much of it a task needs.
struct ScratchSizes {
  int heads, head_rows, head_dim;
  bool scales;  // of a chunk's keys and values
  bool wide;    // a chunk's keys, and then its values, as bfloat16
};

// Of one thread, carved from thread_scratch. A is what is multiplied, S what the cache keeps.
template <class A, class S>
struct Scratch {
  static constexpr int kWeightStride = kChunk + 64 / int(sizeof(A));  // likewise, whole lines

  explicit Scratch(const ScratchSizes& sizes)
      : head_dim(sizes.head_dim), out_stride(round_up(head_dim, VL)) {
    const int rows = round_up(sizes.heads * sizes.head_rows, 16);
    size_t bytes = 0;
    const auto take = [&](size_t n) {
      const size_t at = bytes;
      bytes += (n + 63) / 64 * 64;
      return at;
    };
    const size_t q_at = take(size_t(rows) * head_dim * sizeof(A));
    const size_t scores_at = take(size_t(rows) * kScoreStride * 4);
    const size_t weights_at = take(size_t(rows) * kWeightStride * sizeof(A));
    const size_t out_at = take(size_t(rows) * out_stride * 4);
    const size_t states_at = take(size_t(rows) * sizeof(RowState));
    const size_t last_at = take(size_t(head_dim) * kTileKeys * sizeof(S));
    const size_t scales_at = take(sizes.scales ? size_t(sizes.heads) * 2 * kScaleStride * 4 : 0);
    const size_t wide_at = take(sizes.wide ? size_t(head_dim) / 2 * kWideStride * 2 : 0);
    char* base = static_cast<char*>(thread_scratch(bytes));
    q_rows = reinterpret_cast<A*>(base + q_at);
    score_rows = reinterpret_cast<float*>(base + scores_at);
    weight_rows = reinterpret_cast<A*>(base + weights_at);
    out_rows = reinterpret_cast<float*>(base + out_at);
    states = reinterpret_cast<RowState*>(base + states_at);
    last_values = reinterpret_cast<S*>(base + last_at);
    scale_rows = reinterpret_cast<float*>(base + scales_at);
    wide = reinterpret_cast<bf16*>(base + wide_at);
  }

  A* q(int row) const { return q_rows + int64_t(row) * head_dim; }
  float* scores(int row) const { return score_rows + int64_t(row) * kScoreStride; }
  A* weights(int row) const { return weight_rows + int64_t(row) * kWeightStride; }
  float* out(int row) const { return out_rows + int64_t(row) * out_stride; }
  // Of a head's keys in the chunk, and of its values.
  float* key_scales(int head) const { return scale_rows + int64_t(head) * 2 * kScaleStride; }
  float* value_scales(int head) const { return key_scales(head) + kScaleStride; }

  int head_dim, out_stride;
  A* q_rows;
  float* score_rows;
  A* weight_rows;
  float* out_rows;
  RowState* states;
  S* last_values;  // the last group of keys when it is not full
  float* scale_rows;
  bf16* wide;

 private:
  static constexpr int kScaleStride = kChunk + 16;
};

}  // namespace hotshoe
