// One float vector type, `Vec` of `VL` lanes, over the instruction set of this build.
//
// Loads and stores convert from and to bfloat16 and float16 (round to nearest even); the `_n`
// forms touch only the first n elements (0 <= n <= VL) and fill the other lanes with zero.
// Kernels are written against this header alone; intrinsics stay in the simd_*.h files and in
// guarded specializations of a kernel.
#pragma once

#include "common/dtype.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "common/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "common/simd_avx2.h"
#else
#include "common/simd_generic.h"
#endif

namespace hotshoe {

inline Vec vzero() { return vset(0.0f); }
inline Vec& operator+=(Vec& a, Vec b) { return a = a + b; }
inline Vec& operator-=(Vec& a, Vec b) { return a = a - b; }
inline Vec& operator*=(Vec& a, Vec b) { return a = a * b; }

// Stores a, then b.
template <class T>
void vstore_pair(T* p, Vec a, Vec b) {
  vstore(p, a);
  vstore(p + VL, b);
}

// Terms of e^x = 2^n (1 + r + r^2 p), where |r| <= 0.35.
struct ExpTerms {
  Vec n, r, p;
};

inline ExpTerms vexp_terms(Vec x) {
  const Vec n = vround(x * vset(1.44269504088896341f));
  Vec r = vfma(n, vset(-0.693359375f), x);
  r = vfma(n, vset(2.12194440e-4f), r);
  Vec p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  return {n, r, vfma(p, r, vset(5.0000001201e-1f))};
}

// e^x, relative error below 2e-7; 0 below -87, infinity above 88.4, NaN stays NaN.
inline Vec vexp(Vec x) {
  const ExpTerms e = vexp_terms(vmin(vset(89.0f), x));
  return vscale2(vfma(e.p, e.r * e.r, e.r + vset(1.0f)), e.n);
}

}  // namespace hotshoe
