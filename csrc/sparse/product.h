// Products of float matrices that lie in a thread's own memory, a strip of columns at a time.
#pragma once

#include "common/simd.h"

namespace hotshoe::sparse {

constexpr int64_t kStrip = 2 * VL;
constexpr int kProductRows = kVectorRegisters >= 32 ? 8 : 4;

// c [R, kStrip] = a [R, depth] times b [depth, kStrip], or that is added to c.
template <int R>
void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t depth, float* c, int64_t c_stride, bool add) {
  Vec left[R], right[R];
  for (int r = 0; r < R; ++r) {
    left[r] = add ? vload(c + r * c_stride) : vzero();
    right[r] = add ? vload(c + r * c_stride + VL) : vzero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    const Vec first = vload(b + k * b_stride), second = vload(b + k * b_stride + VL);
    for (int r = 0; r < R; ++r) {
      const Vec x = vset(a[r * a_stride + k]);
      left[r] = vfma(x, first, left[r]);
      right[r] = vfma(x, second, right[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    vstore(c + r * c_stride, left[r]);
    vstore(c + r * c_stride + VL, right[r]);
  }
}

// The same for any number of rows, and columns that kStrip divides.
inline void multiply(const float* a, int64_t a_stride, int64_t rows, const float* b,
                     int64_t b_stride, int64_t columns, int64_t depth, float* c, int64_t c_stride,
                     bool add) {
  for (int64_t column = 0; column < columns; column += kStrip) {
    int64_t row = 0;
    for (; row + kProductRows <= rows; row += kProductRows) {
      multiply_rows<kProductRows>(a + row * a_stride, a_stride, b + column, b_stride, depth,
                                  c + row * c_stride + column, c_stride, add);
    }
    for (; row < rows; ++row) {
      multiply_rows<1>(a + row * a_stride, a_stride, b + column, b_stride, depth,
                       c + row * c_stride + column, c_stride, add);
    }
  }
}

// The rows of a step's tokens in a paged cache.
struct PagedRows {
  const void* cache;
  int64_t block_stride, block_size, width;  // elements

  template <class T>
  const T* at(const int32_t* blocks, int64_t position) const {
    return static_cast<const T*>(cache) + blocks[position / block_size] * block_stride +
           position % block_size * width;
  }
};

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace hotshoe::sparse
