// Products of float matrices that lie in a thread's own memory, a strip of columns at a time.
#pragma once

#include "common/simd.h"

namespace hotshoe::latent {

constexpr int64_t kStrip = 2 * VL;
constexpr int kProductRows = kVectorRegisters >= 32 ? 8 : 4;

// A matrix whose element (row, column) lies row * rows + column * columns behind the first.
struct Strided {
  const float* first;
  int64_t rows, columns;
};

// c [R, V vectors] = a [R, depth] times b [depth, V vectors], or that is added to c.
template <int R, int V>
void multiply_rows(Strided a, const float* b, int64_t b_stride, int64_t depth, float* c,
                   int64_t c_stride, bool add) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = add ? vload(c + r * c_stride + v * VL) : vzero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec operand[V];
    for (int v = 0; v < V; ++v) operand[v] = vload(b + k * b_stride + v * VL);
    for (int r = 0; r < R; ++r) {
      const Vec x = vset(a.first[r * a.rows + k * a.columns]);
      for (int v = 0; v < V; ++v) sum[r][v] = vfma(x, operand[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) vstore(c + r * c_stride + v * VL, sum[r][v]);
  }
}

template <int V>
void multiply_strip(Strided a, int64_t rows, const float* b, int64_t b_stride, int64_t depth,
                    float* c, int64_t c_stride, bool add) {
  int64_t row = 0;
  const auto next = [&] { return Strided{a.first + row * a.rows, a.rows, a.columns}; };
  for (; row + kProductRows <= rows; row += kProductRows) {
    multiply_rows<kProductRows, V>(next(), b, b_stride, depth, c + row * c_stride, c_stride, add);
  }
  for (; row < rows; ++row) {
    multiply_rows<1, V>(next(), b, b_stride, depth, c + row * c_stride, c_stride, add);
  }
}

// The same for any number of rows, and columns that fill vectors.
inline void multiply(Strided a, int64_t rows, const float* b, int64_t b_stride, int64_t columns,
                     int64_t depth, float* c, int64_t c_stride, bool add) {
  int64_t column = 0;
  for (; column + kStrip <= columns; column += kStrip) {
    multiply_strip<2>(a, rows, b + column, b_stride, depth, c + column, c_stride, add);
  }
  if (column == columns) return;
  multiply_strip<1>(a, rows, b + column, b_stride, depth, c + column, c_stride, add);
}

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace hotshoe::latent
