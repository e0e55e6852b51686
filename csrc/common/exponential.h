// 2^x, as exactly as its use needs.
#pragma once

#include "common/simd.h"

namespace hotshoe {

constexpr float kLog2E = 1.44269504088896341f;

// (2^r - 1) / r for |r| <= 1/2, relative error below 5e-7.
inline Vec vexp2_slope(Vec r) {
  Vec p = vset(1.326472731e-3f);
  p = vfma(p, r, vset(9.671512991e-3f));
  p = vfma(p, r, vset(5.550733581e-2f));
  p = vfma(p, r, vset(2.402224243e-1f));
  return vfma(p, r, vset(6.931470037e-1f));
}

// 2^x, relative error below 2e-7; 0 below -125.5, -infinity included; infinity above 127.5, but NaN
// of infinity. Where vround fails large numbers, what should be infinity may be -infinity or NaN.
inline Vec vexp2(Vec x) {
  const Vec n = vround(x), r = x - n;
  return vscale2(vfma(vexp2_slope(r), r, vset(1.0f)), n);
}

// As vexp2, for results that are rounded to T: to 16 bits, a relative error below 8e-5 is enough.
template <class T>
inline Vec vexp2_for(Vec x) {
  if constexpr (sizeof(T) > 2) return vexp2(x);
  const Vec n = vround(x), r = x - n;
  Vec p = vset(5.517167e-2f);
  p = vfma(p, r, vset(2.42611125e-1f));
  p = vfma(p, r, vset(6.93260986e-1f));
  return vscale2(vfma(p, r, vset(0.999928073f)), n);
}

}  // namespace hotshoe
