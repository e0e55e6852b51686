// y = x W^T + bias for weights of 2, 4, 6 or 8 bits whose scales belong to groups of k.
//
// A weight is d * q + m; d, and m where there are minima, belong to a row and a group. q is an unsigned
// integer, and without minima m is -d * offset. Or q is one of the int8 that a table holds, and m is 0
// without minima; the bits are its place there. Rows are cut into blocks of 16. A block holds group after
// group, each as lines of 64 bytes that are 32 bits of each row, and scales behind them:
//   x is float32   [groups]([group * bits / 32][16] uint32; [d, m][16] float)
//   x is bfloat16  [16] float, powers of two, which are factors of float16, then as above; without
//                  minima two groups share a line of scales
// The largest scale of a row is near the top of float16: all keep 11 bits that are not 2^28 smaller.
// N is padded to 16 with zeros, K is a multiple of the group, a group one of whole steps: of the
// words that hold whole values, which are one, or three for 6 bits.
#pragma once

#include "linear/layout.h"

namespace hotshoe::linear {

constexpr int kTableValues = 16;

struct Groups {
  int bits;
  int64_t n, k, group;
  const int8_t* table;  // of kTableValues, the first 2^bits again and again; null for integers
  int offset;           // added to integers before packing, so that none is negative
  bool minima;
  DType x;  // of what W is multiplied by

  Groups(int bits, int64_t n, int64_t k, int64_t group, const int8_t* table, int offset,
         bool minima, DType x)
      : bits(bits), n(n), k(k), group(group), table(table), offset(offset), minima(minima), x(x) {
    if (x != DType::f32 && x != DType::bf16) {
      throw std::invalid_argument("x must be float32 or bfloat16");
    }
    if (table ? bits != 2 && bits != 4 : bits != 4 && bits != 6 && bits != 8) {
      throw std::invalid_argument("groups have integers of 4, 6 or 8 bits, or codes of 2 or 4");
    }
    if (table && offset) throw std::invalid_argument("what a table holds has no offset");
    if (n < 1 || k < 1) throw std::invalid_argument("N and K must be at least 1");
    if (group < 1 || group * bits % (bits == 6 ? 96 : 32) || k % group) {
      throw std::invalid_argument(
          "K must be a multiple of the group, and that one of 32 bits, or 16 values of 6");
    }
  }

  int64_t lines() const { return group * bits / 32; }  // of a group
  int64_t groups() const { return k / group; }
  bool narrow() const { return x == DType::bf16; }
  int64_t unit() const { return narrow() && !minima ? 2 : 1; }  // groups that share scales' lines
  int64_t unit_bytes() const {
    return (unit() * lines() + (narrow() ? 1 : 1 + minima)) * kLineBytes;
  }
  int64_t block_bytes() const {
    return narrow() * kLineBytes + divide_up(groups(), unit()) * unit_bytes();
  }
  int64_t blocks() const { return divide_up(n, kBlockRows); }
  int64_t total_bytes() const { return blocks() * block_bytes(); }
};

// A run of rows: values uint8 [count, k], or of a table int8; d and m float [count, groups].
struct GroupRows {
  int64_t begin, count;
  const uint8_t* values;
  const float *d, *m;
};

// Writes rows into `packed`, which is zero where padding is.
void pack_groups(const Groups& w, void* packed, const GroupRows& rows);

// Strides count elements. x has the type that the weight is packed for.
struct GroupsCall {
  Groups w;
  const void* weights;  // packed
  int64_t m;
  const void* x;
  int64_t x_stride;
  const float* bias;  // [n] or null
  DType y_dtype;
  void* y;
  int64_t y_stride;
};

void linear_groups(const GroupsCall& call);

// The same for integers of 4 bits, where each row of x is rounded to int8: symmetric, to nearest even.
void linear_groups_int8(const GroupsCall& call);

}  // namespace hotshoe::linear
