// From a tile's sums to y: those of spans of k are added, int8 sums are scaled, the bias is added,
// ups are multiplied by their gates, the result is rounded.
#pragma once

#include <algorithm>

#include "common/rows.h"
#include "common/words.h"
#include "linear/tile.h"

namespace hotshoe::linear {

// What belongs to the columns of one panel; pointers to its first one.
struct Columns {
  int64_t n;              // columns of y that exist; the arrays of int8 are padded to 16
  const float* bias;      // or null
  const float* up_bias;   // of ups, where `bias` is that of gates
  const float* w_scales;  // int8 only
  const int32_t* w_sums;
  int unsigned_shift;  // sums are too large by w_sums << this; 0 when x is signed
};

// The rows of a tile whose sums have yet to become y, or part of those carried to the next span.
struct Epilogue {
  int64_t rows = 0;
  void (*write)(Epilogue&, int64_t);  // one of the functions below for these operands
  const void* sums;
  void* carried;  // sums of the spans before, [rows][kTileCols]; or null
  void* y;
  int64_t y_stride;       // elements
  const float* x_scales;  // one for each row; int8 only
  Columns columns;

  void advance(int64_t n) {
    if (rows > 0) write(*this, std::min(n, rows));
  }
};

// A line of y is asked for so many rows before it is written: no processor foresees where these go.
constexpr int64_t kRowsAhead = 8;

inline Vec scaled(IntLanes sums, const Columns& columns, int64_t c, float x_scale) {
  if (columns.unsigned_shift) sums -= load_words(columns.w_sums + c) << columns.unsigned_shift;
  const Vec value = {(decltype(Vec::v))__builtin_convertvector(sums, FloatLanes)};
  return value * (vset(x_scale) * vload(columns.w_scales + c));
}

// Float sums, or int32 ones whose lanes are in a Vec all the same, with what is carried to them.
template <bool kWords>
Vec total(const float* sums, const float* carried, int64_t i) {
  if (!carried) return vload(sums + i);
  if constexpr (kWords) return from_words(load_words(sums + i) + load_words(carried + i));
  return vload(sums + i) + vload(carried + i);
}

// Adds a tile's sums to those carried; of columns that do not exist too, where they mean nothing.
template <bool kWords>
void carry_rows(Epilogue& e, int64_t n) {
  const auto* sums = (const float*)e.sums;
  auto* carried = (float*)e.carried;
  for (int64_t i = 0; i < n * kTileCols; i += VL) {
    vstore(carried + i, total<kWords>(sums, carried, i));
  }
  e.sums = sums + n * kTileCols;
  e.carried = carried + n * kTileCols;
  e.rows -= n;
}

// Writes n rows of y, by write_row(to, value): value(c, bias, lanes) are results from column c of
// the tile on, to which lanes of `bias` are added if it is not null. kScaled: sums of int8 products.
template <class T, bool kScaled, class F>
inline __attribute__((always_inline)) void write_each(Epilogue& e, int64_t n, const F& write_row) {
  const auto* sums = (const float*)e.sums;
  const auto* carried = (const float*)e.carried;
  auto* y = (T*)e.y;
  for (int64_t r = 0; r < n; ++r, y += e.y_stride, sums += kTileCols) {
    __builtin_prefetch(y + kRowsAhead * e.y_stride, 1);
    write_row(y, [&](int64_t c, const float* bias, auto lanes) {
      Vec v = total<kScaled>(sums, carried, c);
      if constexpr (kScaled) v = scaled(to_words(v), e.columns, c, e.x_scales[r]);
      return bias ? v + load(bias, lanes) : v;
    });
    if (carried) carried += kTileCols;
  }
  e.y = y;
  e.sums = sums;
  e.carried = (void*)carried;
  if (kScaled) e.x_scales += n;
  e.rows -= n;
}

// kWhole: all columns of a tile exist.
template <class T, bool kScaled, bool kWhole>
void write_rows(Epilogue& e, int64_t n) {
  const float* const bias = e.columns.bias;
  write_each<T, kScaled>(e, n, [&](T* y, const auto& value) {
    const auto at = [&](int64_t c, auto lanes) { return value(c, bias ? bias + c : bias, lanes); };
    if constexpr (kWhole) {
      for (int64_t c = 0; c < kTileCols; c += 2 * VL) {
        vstore_pair(y + c, at(c, WholeVector{}), at(c + VL, WholeVector{}));
      }
    } else {
      for_vectors(e.columns.n, [&](int64_t c, auto lanes) { store(y + c, at(c, lanes), lanes); });
    }
  });
}

// The tile's first block are gates, its second what they multiply.
template <class T, bool kScaled, class Act>
void write_gated_rows(Epilogue& e, int64_t n) {
  const float *const bias = e.columns.bias, *const up_bias = e.columns.up_bias;
  write_each<T, kScaled>(e, n, [&](T* y, const auto& value) {
    for_vectors(e.columns.n, [&](int64_t c, auto lanes) {
      const Vec gate = value(c, bias ? bias + c : bias, lanes);
      const Vec up = value(kBlockRows + c, bias ? up_bias + c : bias, lanes);
      store(y + c, Act{}.template apply<T>(gate) * up, lanes);
    });
  });
}

}  // namespace hotshoe::linear
