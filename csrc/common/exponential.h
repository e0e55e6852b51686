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

// 2^x, relative error below 2e-7 above -100, exactly 0 up to -126; x at most 127, NaN stays NaN.
// Never scales to a subnormal number, which takes some processors a hundred times as long.
inline Vec vexp2(Vec x) {
  x = vmax(vset(-126.0f), x);
  const Vec n = vround(x), r = x - n;
  return vscale2(vfma(vexp2_slope(r), r, vset(1.0f)), n) - vset(0x1p-126f);
}

// As vexp2, for results that are rounded to T: to 16 bits, a relative error below 8e-5 is enough,
// and x may be larger. That polynomial is below 1 at 0, so it is cut at -125: at -126 it would scale
// to a subnormal.
template <class T>
inline Vec vexp2_for(Vec x) {
  if constexpr (sizeof(T) > 2) return vexp2(x);
  constexpr float kAtZero = 0.999928073f;
  x = vmax(vset(-125.0f), x);
  const Vec n = vround(x), r = x - n;
  Vec p = vset(5.517167e-2f);
  p = vfma(p, r, vset(2.42611125e-1f));
  p = vfma(p, r, vset(6.93260986e-1f));
  return vscale2(vfma(p, r, vset(kAtZero)), n) - vset(kAtZero * 0x1p-125f);
}

}  // namespace hotshoe
