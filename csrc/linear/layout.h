// The packed form of a weight matrix W[N, K], one for every instruction set.
//
// Rows are cut into blocks of 16. A block holds, for each group of consecutive k (as many as
// fill 32 bits), the 16 rows' values side by side: 64 bytes that meet one broadcast group of x.
//   bfloat16  [N/16][K/2][16][2]
//   float32   [N/16][K][16]
//   int8      [N/16][K/4][16][4], then float scale[N] and int32 sum_k W[N], both padded to 16
// N is padded to 16; K to what an AMX tile takes (64 bytes of one row). Padding is zero.
//
// A gated weight has N/2 rows of gates and then as many of ups. Blocks of either come in turn, so
// that a gate and what it multiplies are sums of the same tile; each half of N is padded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/dtype.h"

namespace hotshoe::linear {

constexpr int kBlockRows = 16;
constexpr int kGroupBytes = 4;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kMaxInt8K = HOTSHOE_MAX_INT8_K;  // see python/hotshoe_native/_limits.py

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
inline int64_t divide_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit; }

inline int element_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::i8: return 1;
    default: break;
  }
  throw std::invalid_argument("no packed weights of dtype code " + std::to_string(int(dtype)) +
                              ": 0 float32, 1 bfloat16, 3 int8");
}

struct Layout {
  DType dtype;
  int64_t n, k;
  int64_t parts;        // 2: gates and ups; else 1
  int64_t part_rows;    // n / parts
  int64_t blocks;       // of 16 rows
  int64_t group;        // values of k side by side
  int64_t block_bytes;  // one block, K padding included

  Layout(DType dtype, int64_t n, int64_t k, bool gated = false)
      : dtype(dtype), n(n), k(k), parts(gated ? 2 : 1), part_rows(n / parts) {
    const int size = element_bytes(dtype);
    if (n < 1 || k < 1) throw std::invalid_argument("N and K must be at least 1");
    if (dtype == DType::i8 && k > kMaxInt8K) {
      throw std::invalid_argument("K of int8 weights must be at most " + std::to_string(kMaxInt8K));
    }
    if (gated && n % 2) throw std::invalid_argument("N of a gated weight must be even");
    blocks = parts * divide_up(part_rows, kBlockRows);
    group = kGroupBytes / size;
    block_bytes = round_up(k * size, kLineBytes) * kBlockRows;
  }

  // Where a row of a part, or its padding, lies among all rows of all blocks.
  int64_t place(int64_t part, int64_t row) const {
    return (row / kBlockRows * parts + part) * kBlockRows + row % kBlockRows;
  }
  int64_t groups() const { return divide_up(k, group); }
  int64_t padded_n() const { return blocks * kBlockRows; }
  int64_t weight_bytes() const { return blocks * block_bytes; }
  int64_t total_bytes() const {
    return weight_bytes() + (dtype == DType::i8 ? padded_n() * (4 + 4) : 0);
  }

  // int8 only; in the order of `place`.
  float* scales(void* packed) const { return (float*)((char*)packed + weight_bytes()); }
  int32_t* sums(void* packed) const { return (int32_t*)(scales(packed) + padded_n()); }
  const float* scales(const void* packed) const { return scales(const_cast<void*>(packed)); }
  const int32_t* sums(const void* packed) const { return sums(const_cast<void*>(packed)); }
};

}  // namespace hotshoe::linear
