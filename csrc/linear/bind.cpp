// Python functions of the linear kernels.

#include <nanobind/nanobind.h>

#include "linear/groups.h"
#include "linear/linear.h"
#include "linear/pack.h"
#include "linear/tile.h"
#include "record/record.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe {
namespace {

constexpr int kNoGate = -1;

int64_t packed_nbytes(int dtype, int64_t n, int64_t k, bool gated) {
  return linear::Layout(DType(dtype), n, k, gated).total_bytes();
}

void pack_rows(int dtype, uintptr_t packed, int64_t n, int64_t k, int64_t row_begin, int64_t rows,
               int src_dtype, uintptr_t src, int64_t src_stride, uintptr_t scales, bool gated) {
  linear::pack_rows(linear::Layout(DType(dtype), n, k, gated), (void*)packed,
                    {row_begin, rows, DType(src_dtype), (const void*)src, src_stride,
                     (const float*)scales});
}

void linear_(int dtype, uintptr_t packed, int64_t n, int64_t k, int64_t m, int x_dtype,
             uintptr_t x, int64_t x_stride, uintptr_t bias, int y_dtype, uintptr_t y,
             int64_t y_stride, int gate) {
  linear::linear({linear::Layout(DType(dtype), n, k, gate != kNoGate), (const void*)packed, m,
                  DType(x_dtype), (const void*)x, x_stride, (const float*)bias, DType(y_dtype),
                  (void*)y, y_stride, gate});
}

linear::Groups groups(int bits, int64_t n, int64_t k, int64_t group, uintptr_t table, int offset,
                      bool minima, int x_dtype) {
  return {bits, n, k, group, (const int8_t*)table, offset, minima, DType(x_dtype)};
}

int64_t groups_nbytes(int bits, int64_t n, int64_t k, int64_t group, uintptr_t table, bool minima,
                      int x_dtype) {
  return groups(bits, n, k, group, table, 0, minima, x_dtype).total_bytes();
}

void pack_groups(int bits, int64_t n, int64_t k, int64_t group, uintptr_t table, int x_dtype,
                 uintptr_t packed, int64_t row_begin, int64_t rows, uintptr_t values,
                 uintptr_t scales, uintptr_t minima) {
  const linear::Groups w = groups(bits, n, k, group, table, 0, minima != 0, x_dtype);
  linear::pack_groups(w, (void*)packed,
                      {row_begin, rows, (const uint8_t*)values, (const float*)scales,
                       (const float*)minima});
}

template <void (*kMultiply)(const linear::GroupsCall&)>
void linear_groups(int bits, int64_t n, int64_t k, int64_t group, uintptr_t table, int offset,
                   bool minima, uintptr_t packed, int64_t m, int x_dtype, uintptr_t x,
                   int64_t x_stride, uintptr_t bias, int y_dtype, uintptr_t y, int64_t y_stride) {
  const linear::Groups w = groups(bits, n, k, group, table, offset, minima, x_dtype);
  kMultiply({w, (const void*)packed, m, (const void*)x, x_stride, (const float*)bias,
             DType(y_dtype), (void*)y, y_stride});
}

}  // namespace

void bind_linear(nb::module_& m) {
  linear::prepare_process();
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  m.def("linear_packed_nbytes", &packed_nbytes, "dtype"_a, "n"_a, "k"_a, "gated"_a = false,
        "Bytes of a packed [n, k] weight of dtype 0 float32, 1 bfloat16 or 3 int8.\n\n"
        "gated: it has n / 2 rows of gates, then as many of ups; see `linear`.\n\n"
        "Raises:\n    ValueError: a dtype that is not packed, or sizes that cannot be.");
  m.def("linear_pack_rows", &pack_rows, "dtype"_a, "packed"_a, "n"_a, "k"_a, "row_begin"_a,
        "rows"_a, "src_dtype"_a, "src"_a, "src_stride"_a, "scales"_a = 0,
        "gated"_a = false, Unlocked(),
        "Pack rows [row_begin, row_begin + rows) of an [n, k] weight into `packed`.\n\n"
        "src is their row-major address, src_stride its elements per row. Rows may come in any\n"
        "order and in any cuts; all must have come before the weight is used. src has the packed\n"
        "dtype, or a float dtype that is quantised to int8 (per row, symmetric, nearest even), or\n"
        "is int8 with `scales`, the address of float32 [rows].\n\n"
        "Raises:\n    ValueError: rows outside the weight, or dtypes that do not go together.");
  m.def("linear", recorded(&linear_), "dtype"_a, "packed"_a, "n"_a, "k"_a, "m"_a, "x_dtype"_a,
        "x"_a, "x_stride"_a, "bias"_a, "y_dtype"_a, "y"_a, "y_stride"_a, "gate"_a = kNoGate,
        Unlocked(),
        "y[m, n] = x[m, k] W^T + bias for a packed weight; strides count elements between rows.\n\n"
        "gate: for a weight that is packed gated, which activation: 0 silu, 1 gelu, 2 gelu_tanh.\n"
        "y[m, n / 2] is then act(gates) * ups, where both are such results in float32.\n\n"
        "x has the weight's dtype, or any float for int8: its rows are then quantised each on its\n"
        "own (symmetric, nearest even). y has any float dtype; bias is the address of float32 [n],\n"
        "or 0. Sums are float32, exact for int8. A row's result depends neither on the number of\n"
        "threads nor on the other rows, except that on AMX bfloat16 rounds differently up to 4\n"
        "rows and above. A row that holds a NaN gives NaN.\n\n"
        "Raises:\n    ValueError: dtypes that do not go together, or an unknown activation.");
  m.def("linear_groups_nbytes", &groups_nbytes, "bits"_a, "n"_a, "k"_a, "group"_a, "table"_a,
        "minima"_a, "x_dtype"_a,
        "Bytes of a packed [n, k] weight with scales by group, and minima.\n\n"
        "table: 0 for integers of 4, 6 or 8 bits, which have none; otherwise the address of int8\n"
        "[16], what codes of 4 bits stand for, or those of 2, four times. It has to stay there.\n"
        "x_dtype: 0 float32, or 1 bfloat16, for which scales have 16 bits.\n\n"
        "Raises:\n    ValueError: sizes that cannot be, or another type of x.");
  m.def("linear_groups_pack", &pack_groups, "bits"_a, "n"_a, "k"_a, "group"_a, "table"_a,
        "x_dtype"_a, "packed"_a, "row_begin"_a, "rows"_a, "values"_a, "scales"_a, "minima"_a,
        Unlocked(),
        "Pack rows [row_begin, row_begin + rows) into `packed`, which is zero before.\n\n"
        "values is the address of uint8 [rows, k], or with a table int8, scales and minima those of\n"
        "float32 [rows, k / group]; minima may be 0. A weight is scale * value + minimum.\n\n"
        "Raises:\n    ValueError: rows outside the weight, or values that the table lacks.");
  m.def("linear_groups", recorded(&linear_groups<linear::linear_groups>), "bits"_a, "n"_a,
        "k"_a, "group"_a, "table"_a, "offset"_a, "minima"_a, "packed"_a, "m"_a, "x_dtype"_a, "x"_a,
        "x_stride"_a, "bias"_a, "y_dtype"_a, "y"_a, "y_stride"_a, Unlocked(),
        "y[m, n] = x[m, k] W^T + bias for a weight of `linear_groups_pack`.\n\n"
        "offset: without minima, a weight is scale * (value - offset); 0 with a table. x is float32\n"
        "or bfloat16, y has any float dtype. Up to 16 rows (4, or of 8 bits 8, where bfloat16 has\n"
        "units of its own), weights and sums are float32; above, weights are rounded to the dtype of x, and it is as for\n"
        "`linear`. A row's result depends neither on the number of threads nor, but for that limit,\n"
        "on the other rows.\n\n"
        "Raises:\n    ValueError: dtypes that do not go together.");
  m.def("linear_groups_int8", recorded(&linear_groups<linear::linear_groups_int8>), "bits"_a,
        "n"_a, "k"_a, "group"_a, "table"_a, "offset"_a, "minima"_a, "packed"_a, "m"_a, "x_dtype"_a,
        "x"_a, "x_stride"_a, "bias"_a, "y_dtype"_a, "y"_a, "y_stride"_a, Unlocked(),
        "The same for integers of 4 bits, which need no table, where each row of x is quantised to\n"
        "int8 on its own (symmetric, nearest even). Sums within a group are exact, those of groups\n"
        "float32. On AMX more than 32 rows of bfloat16 and the weights are rounded to it again, and\n"
        "it is as for `linear`; but for that limit a row's result does not depend on the other rows.\n"
        "A row that holds a NaN gives NaN.\n\n"
        "Raises:\n    ValueError: dtypes that do not go together, or other bits.");
}

}  // namespace hotshoe
