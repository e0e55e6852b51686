// The inner product of a few rows of x with one or two packed blocks, and how kernels offer it.
//
// A `Kernel` reads x in its own form (see `Form`), takes up to `max_rows` rows at once and leaves
// sums in float32 or int32. Every sum runs over k in order, in one chain or one for each span of k,
// so that it depends neither on the other rows, nor on the split over threads.
#pragma once

#include <cstdint>

#include "linear/layout.h"

namespace hotshoe::linear {

constexpr int kMaxBlocks = 2;                           // blocks of W per tile
constexpr int kTileCols = kMaxBlocks * kBlockRows;      // row length of `sums`

struct Epilogue;

struct Tile {
  const void* x;          // first row, in the kernel's form
  int64_t x_stride;       // bytes between rows, or between strips of rows
  int rows, blocks;
  const char* w;          // first block
  int64_t block_bytes;    // between blocks
  int64_t groups;         // of k
  const char* prefetch;   // blocks that will be needed next, fetched while this tile is computed
  int64_t prefetch_step;  // bytes of each of them per group
  void* sums;             // [rows][kTileCols] float or int32; rows of whole strips
  Epilogue* before;       // what is left to do with the sums of the tile before
};

// What a kernel wants x to be.
enum class Form {
  bf16,       // as it is; a whole number of groups
  f32,        // float
  u8,         // quantised, plus 128
  s8,         // quantised
  s16_pairs,  // quantised, as int16 in the order k0 k2 k1 k3
};

struct Kernel {
  Form form;
  int max_rows, max_blocks;  // per tile
  bool float_sums;
  int64_t k_unit;  // x is padded with zeros to a multiple of this
  int strip_rows;  // above 1, x lies in strips of so many rows: [k / line][row][line]
  int64_t x_bytes;  // of x worked on together: they stay in the second-level cache, beside W
  // Groups of k that all these rows meet before the next ones, so that their part of W stays in the
  // first-level cache meanwhile; 0: all of k.
  int64_t max_span;
  void (*run)(const Tile&);
  // Called by each thread after its last tile. A kernel that has it also does what is left of
  // Tile::before, beside its own work; for others (null) nothing is.
  void (*finish)();
};

// Asks the system for what the kernels need (AMX tiles); once, before any runs.
// Throws std::system_error when it refuses.
void prepare_process();

// The best kernels of this build: for bfloat16 or float32 weights, for int8 weights, and on
// AMX tiles (null where the build has none, or for float32).
const Kernel& float_kernel(DType weights);
const Kernel& int8_kernel();
const Kernel* amx_kernel(DType weights);

}  // namespace hotshoe::linear
