// Gated activations: act(gate) * up over rows that hold gate and up side by side.

#include <nanobind/nanobind.h>

#include "activation/gates.h"
#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr int64_t kMinElementsPerThread = 4096;  // below, waking a thread costs more

struct ActivationArgs {
  void* out;
  const void* x;
  int64_t rows, size, out_stride, x_stride;
};

template <class T, class F>
void gate_rows(const ActivationArgs& args, F act) {
  parallel_for(
      args.rows,
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          T* out = static_cast<T*>(args.out) + row * args.out_stride;
          const T* gate = static_cast<const T*>(args.x) + row * args.x_stride;
          const T* up = gate + args.size;
          for_vectors(args.size, [&](int64_t i, auto lanes) {
            const Vec opened = act.template apply<T>(load(gate + i, lanes));
            store(out + i, opened * load(up + i, lanes), lanes);
          });
        }
      },
      rows_holding(kMinElementsPerThread, args.size));
}

void gated_activation(const ActivationArgs& args, int kind, int dtype) {
  visit_float(dtype, [&](auto tag) {
    visit_activation(kind, [&](auto act) { gate_rows<decltype(tag)>(args, act); });
  });
}

}  // namespace

void bind_activation(nb::module_& m) {
  m.def(
      "gated_activation",
      recorded(+[](uintptr_t out, uintptr_t x, int64_t rows, int64_t size, int64_t out_stride,
                   int64_t x_stride, int kind, int dtype) {
        gated_activation({reinterpret_cast<void*>(out), reinterpret_cast<const void*>(x), rows,
                          size, out_stride, x_stride},
                         kind, dtype);
      }),
      nb::call_guard<nb::gil_scoped_release>(),
      "gated_activation(out, x, rows, size, out_stride, x_stride, kind, dtype)\n\n"
      "out [rows, size] = act(x[:, :size]) * x[:, size:]; kind 0 silu, 1 gelu, 2 gelu_tanh.\n"
      "Addresses; out must not overlap x.\n\n"
      "Raises:\n    ValueError: Unknown kind or dtype.");
}

}  // namespace hotshoe
