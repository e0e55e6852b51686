// The functions of gates, for results that are rounded to T: x * sigmoid(x) and x * Phi(x).
//
// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU); Shazeer 2020, arXiv:2002.05202.
#pragma once

#include <stdexcept>
#include <string>

#include "common/exponential.h"

namespace hotshoe {

enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2 };

// x / (1 + e^y)
template <class T>
Vec over_one_plus_exp(Vec x, Vec y) {
  if constexpr (sizeof(T) > 2) return x / (vset(1.0f) + vexp(y));
  // Infinity from 128 on, but of an infinite exponent it would be NaN.
  const Vec power = vmin(vset(200.0f), y * vset(kLog2E));
  return vover_16(x, vset(1.0f) + vexp2_for<T>(power));
}

struct Silu {
  template <class T>
  Vec apply(Vec x) const {
    return over_one_plus_exp<T>(x, vzero() - x);
  }
};

// The logistic function of 2y is (1 + tanh y) / 2.
struct GeluTanh {
  template <class T>
  Vec apply(Vec x) const {
    const Vec y = x * vfma(vset(0.044715f) * x, x, vset(1.0f));
    return over_one_plus_exp<T>(x, y * vset(-1.5957691216057308f));  // -2 sqrt(2 / pi)
  }
};

// x * Phi(x). The complementary error function of |x| / sqrt(2) is a rational approximation
// times exp, absolute error below 2e-7 (Abramowitz and Stegun 7.1.26), so that the left tail
// does not cancel.
struct Gelu {
  template <class T>
  Vec apply(Vec x) const {
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

// Calls f with the function of this code.
template <class F>
auto visit_activation(int kind, F f) {
  switch (Activation(kind)) {
    case Activation::silu: return f(Silu{});
    case Activation::gelu: return f(Gelu{});
    case Activation::gelu_tanh: return f(GeluTanh{});
  }
  throw std::invalid_argument("activation code " + std::to_string(kind) +
                              " is unknown: 0 silu, 1 gelu, 2 gelu_tanh");
}

}  // namespace hotshoe
