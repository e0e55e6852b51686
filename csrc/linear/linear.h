// y = x W^T + bias over packed weights, or act(gate) * up of these.
#pragma once

#include "linear/layout.h"

namespace hotshoe::linear {

// Operands of one product. Strides count elements.
struct Call {
  Layout layout;
  const void* weights;  // packed
  int64_t m;
  DType x_dtype;  // that of the weights; any float for int8
  const void* x;
  int64_t x_stride;
  const float* bias;  // [n] or null
  DType y_dtype;
  void* y;
  int64_t y_stride;
  int gate;  // of a gated weight, whose y has n / 2 columns: activation code
};

void linear(const Call& call);

}  // namespace hotshoe::linear
