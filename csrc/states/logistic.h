// ln(1 + e^x), by which checkpoints say how fast states decay.
#pragma once

#include "common/simd.h"

namespace hotshoe::states {

// ln(1 + e^x), relative error below 1e-6; NaN stays NaN.
inline Vec softplus(Vec x) {
  // ln(1 + u) = 2 artanh(s) where s = u / (2 + u) is at most 1/3: a series in s^2.
  const Vec u = vexp(vzero() - vabs(x)), s = u / (u + vset(2.0f)), square = s * s;
  Vec sum = vset(2.0f / 17);
  for (const float factor : {2.0f / 15, 2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5,
                             2.0f / 3, 2.0f}) {
    sum = vfma(sum, square, vset(factor));
  }
  return vfma(sum, s, vmax(vzero(), x));
}

inline float softplus(float x) { return vfirst(softplus(vset(x))); }

inline float exponential(float x) { return vfirst(vexp(vset(x))); }

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace hotshoe::states
