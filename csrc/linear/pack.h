// Packs weight rows; see layout.h for the result.
#pragma once

#include "linear/layout.h"

namespace hotshoe::linear {

// A run of weight rows as a checkpoint has them.
struct Rows {
  int64_t begin, count;  // their place in W
  DType dtype;
  const void* data;
  int64_t stride;       // elements between rows
  const float* scales;  // [count]: only for int8 data
};

// Writes `rows` into their place in `packed`. Rows may come in any order and in any cuts; the
// padding of a part is written with its last row. Weights keep their type, or are quantised to
// int8: per row, symmetric, to nearest even.
void pack_rows(const Layout& layout, void* packed, const Rows& rows);

}  // namespace hotshoe::linear
