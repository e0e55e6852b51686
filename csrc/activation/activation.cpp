// Gated activations: act(gate) * up over rows that hold gate and up side by side.
//
// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU); Shazeer 2020, arXiv:2002.05202.

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr int64_t kMinElementsPerThread = 4096;  // below, waking a thread costs more

enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2 };

struct Silu {
  Vec operator()(Vec x) const { return x / (vset(1.0f) + vexp(vzero() - x)); }
};

// The logistic function of 2y is (1 + tanh y) / 2.
struct GeluTanh {
  Vec operator()(Vec x) const {
    const Vec y = x * vfma(vset(0.044715f) * x, x, vset(1.0f));
    return x / (vset(1.0f) + vexp(y * vset(-1.5957691216057308f)));  // -2 sqrt(2 / pi)
  }
};

// x * Phi(x). The complementary error function of |x| / sqrt(2) is a rational approximation
// times exp, absolute error below 2e-7 (Abramowitz and Stegun 7.1.26), so that the left tail
// does not cancel.
struct Gelu {
  Vec operator()(Vec x) const {
    const Vec one = vset(1.0f), z = vabs(x) * vset(0.70710678118654752f);
    const Vec t = one / vfma(z, vset(0.3275911f), one);
    Vec p = vset(1.061405429f);
    p = vfma(p, t, vset(-1.453152027f));
    p = vfma(p, t, vset(1.421413741f));
    p = vfma(p, t, vset(-0.284496736f));
    p = vfma(p, t, vset(0.254829592f));
    const Vec tail = p * t * vexp(vzero() - z * z) * vset(0.5f);  // Phi(-|x|)
    return vmax(vzero(), x) - vabs(x) * tail;
  }
};

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
            store(out + i, act(load(gate + i, lanes)) * load(up + i, lanes), lanes);
          });
        }
      },
      rows_holding(kMinElementsPerThread, args.size));
}

void gated_activation(const ActivationArgs& args, int kind, int dtype) {
  visit_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (Activation(kind)) {
      case Activation::silu: return gate_rows<T>(args, Silu{});
      case Activation::gelu: return gate_rows<T>(args, Gelu{});
      case Activation::gelu_tanh: return gate_rows<T>(args, GeluTanh{});
    }
    throw std::invalid_argument("activation code " + std::to_string(kind) +
                                " is unknown: 0 silu, 1 gelu, 2 gelu_tanh");
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
