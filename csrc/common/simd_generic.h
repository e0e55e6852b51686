// Vec over the compiler's own vector extension (GCC, Clang): 8 lanes on any processor, which
// become SSE or NEON registers. Included by simd.h only; no intrinsics.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/dtype.h"

namespace hotshoe {

constexpr int VL = 8;
typedef float Floats __attribute__((vector_size(VL * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(VL * sizeof(float))));

struct Vec {
  Floats v;
};

inline Vec vset(float x) { return {Floats{} + x}; }

inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
// a * b + c
inline Vec vfma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
// The second operand where either is NaN.
inline Vec vmax(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec vmin(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
inline Vec vabs(Vec a) { return {(Floats)((Ints)a.v & 0x7fffffff)}; }
inline Vec vsqrt(Vec a) {
  for (int i = 0; i < VL; ++i) a.v[i] = std::sqrt(a.v[i]);
  return a;
}
// To the nearest integer, ties to even; |a| below 2^22.
inline Vec vround(Vec a) { return {(a.v + 12582912.0f) - 12582912.0f}; }

// a * 2^n for integral n in [-252, 254]: in two steps, so that subnormals and infinity are met.
inline Vec vscale2(Vec a, Vec n) {
  const Ints all = __builtin_convertvector(n.v, Ints), half = all >> 1;
  return {a.v * (Floats)((half + 127) << 23) * (Floats)((all - half + 127) << 23)};
}

inline float vsum(Vec a) {
  const Floats x = a.v;
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
inline float vmax_lane(Vec a) {
  float largest = a.v[0];
  for (int i = 1; i < VL; ++i) largest = std::max(largest, a.v[i]);
  return largest;
}

template <class T>
Vec vload_n(const T* p, int n) {
  float lanes[VL] = {};
  for (int i = 0; i < n; ++i) lanes[i] = to_float(p[i]);
  Vec a;
  std::memcpy(&a, lanes, sizeof lanes);
  return a;
}

template <class T>
void vstore_n(T* p, Vec a, int n) {
  float lanes[VL];
  std::memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < n; ++i) p[i] = from_float<T>(lanes[i]);
}

template <class T>
Vec vload(const T* p) {
  return vload_n(p, VL);
}
template <class T>
void vstore(T* p, Vec a) {
  vstore_n(p, a, VL);
}

}  // namespace hotshoe
