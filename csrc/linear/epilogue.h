// From a tile's sums to y: int8 sums are scaled, the bias is added, the result is rounded.
#pragma once

#include "common/rows.h"
#include "common/words.h"
#include "linear/tile.h"

namespace hotshoe::linear {

// What belongs to the columns of one panel; pointers to its first one.
struct Columns {
  int64_t n;              // columns that exist; the arrays of int8 are padded to 16
  const float* bias;      // or null
  const float* w_scales;  // int8 only
  const int32_t* w_sums;
  int unsigned_shift;  // sums are too large by w_sums << this; 0 when x is signed
};

inline Vec scaled(const int32_t* sums, const Columns& columns, int64_t c, float x_scale) {
  IntLanes exact = load_words(sums + c);
  if (columns.unsigned_shift) exact -= load_words(columns.w_sums + c) << columns.unsigned_shift;
  const Vec value = {(decltype(Vec::v))__builtin_convertvector(exact, FloatLanes)};
  return value * (vset(x_scale) * vload(columns.w_scales + c));
}

// Writes `rows` rows of y, `stride` elements apart. x_scales: one for each row; null for floats.
template <class T>
void write_rows(T* y, int64_t stride, int rows, const void* sums, const Columns& columns,
                const float* x_scales) {
  for (int r = 0; r < rows; ++r, y += stride) {
    const auto* row = (const float*)sums + r * kTileCols;
    for_vectors(columns.n, [&](int64_t c, auto lanes) {
      Vec value = x_scales ? scaled((const int32_t*)row, columns, c, x_scales[r]) : vload(row + c);
      if (columns.bias) value += load(columns.bias + c, lanes);
      store(y + c, value, lanes);
    });
  }
}

}  // namespace hotshoe::linear
