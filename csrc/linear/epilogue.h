// From a tile's sums to y: int8 sums are scaled, the bias is added, the result is rounded.
#pragma once

#include <algorithm>

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

// The rows of a tile whose sums have yet to become y.
struct Epilogue {
  int64_t rows = 0;
  void (*write)(Epilogue&, int64_t);  // write_rows for the dtype of y
  const float* sums;
  void* y;
  int64_t y_stride;       // elements
  const float* x_scales;  // one for each row; null for floats
  Columns columns;

  void advance(int64_t n) {
    if (rows > 0) write(*this, std::min(n, rows));
  }
};

template <class T>
void write_rows(Epilogue& e, int64_t n) {
  auto* y = (T*)e.y;
  const Columns columns = e.columns;
  for (int64_t r = 0; r < n; ++r, y += e.y_stride, e.sums += kTileCols) {
    for_vectors(columns.n, [&](int64_t c, auto lanes) {
      Vec value = e.x_scales ? scaled((const int32_t*)e.sums, columns, c, e.x_scales[r])
                             : vload(e.sums + c);
      if (columns.bias) value += load(columns.bias + c, lanes);
      store(y + c, value, lanes);
    });
  }
  e.y = y;
  if (e.x_scales) e.x_scales += n;
  e.rows -= n;
}

}  // namespace hotshoe::linear
