// Vec over the compiler's own vector extension (GCC, Clang): 4 lanes on any processor, which
// become an SSE or NEON register. Included by simd.h only; no intrinsics but a few of Arm's.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/dtype.h"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace hotshoe {

constexpr int VL = 4;
typedef float Floats __attribute__((vector_size(VL * 4)));
typedef int32_t Ints __attribute__((vector_size(VL * 4)));
typedef uint32_t Words __attribute__((vector_size(VL * 4)));
typedef uint16_t Halves __attribute__((vector_size(VL * 2)));

struct Vec {
  Floats v;
};

#ifdef __aarch64__
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorRegisters = 16;
#endif

inline Vec vset(float x) { return {Floats{x, x, x, x}}; }

inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
// a / b for results of 16 bits, as exactly as needed or more.
inline Vec vover_16(Vec a, Vec b) { return a / b; }
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
// To the nearest integer, ties to even; |a| below 2^22. The second gives 32-bit integers, any where a
// is NaN or beyond them.
#ifdef __aarch64__
// A sum would take the product that a may be into an fma, which does not round it first.
inline Vec vround(Vec a) { return {(Floats)vrndnq_f32((float32x4_t)a.v)}; }
inline Ints vnearest(Vec a) { return (Ints)vcvtnq_s32_f32((float32x4_t)a.v); }
#else
inline Vec vround(Vec a) { return {(a.v + 12582912.0f) - 12582912.0f}; }
inline Ints vnearest(Vec a) { return __builtin_convertvector(vround(a).v, Ints); }
#endif

// a * 2^n for integral n and a near 1: 0 below -125, infinity from 128.
inline Vec vscale2(Vec a, Vec n) {
  const Floats bounded = vmin(vset(128.0f), vmax(vset(-125.0f), n)).v;
  const Floats scaled = a.v * (Floats)((__builtin_convertvector(bounded, Ints) + 127) << 23);
  return {n.v < -125.0f ? Floats{} : scaled};
}

inline float vsum(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float vmax_lane(Vec a) {
  return std::max(std::max(a.v[0], a.v[2]), std::max(a.v[1], a.v[3]));
}
inline float vfirst(Vec a) { return a.v[0]; }

inline Vec vload(const float* p) {
  Vec a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
inline Vec vload(const bf16* p) {
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
  return {(Floats)(__builtin_convertvector(halves, Words) << 16)};
}
inline Vec vload(const f16* p) {
#ifdef __aarch64__
  return {(Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))};
#else
  return {Floats{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}};
#endif
}

inline void vstore(float* p, Vec a) { std::memcpy(p, &a, sizeof a); }
inline void vstore(bf16* p, Vec a) {
  const Words u = (Words)a.v;
  const Words rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const Halves halves =
      __builtin_convertvector((a.v == a.v ? rounded : (u | 0x400000u)) >> 16, Halves);
  std::memcpy(p, &halves, sizeof halves);
}
inline void vstore(f16* p, Vec a) {
#ifdef __aarch64__
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)a.v)));
#else
  for (int i = 0; i < VL; ++i) p[i] = from_float<f16>(a.v[i]);
#endif
}

template <class T>
Vec vload_n(const T* p, int n) {
  T lanes[VL] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return vload(lanes);
}
template <class T>
void vstore_n(T* p, Vec a, int n) {
  T lanes[VL];
  vstore(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace hotshoe
