// Vec over AVX2, FMA and F16C: 8 lanes. Included by simd.h only.
#pragma once

#include <immintrin.h>

#include "common/dtype.h"

namespace hotshoe {

struct Vec {
  __m256 v;
};
constexpr int VL = 8;
constexpr int kVectorRegisters = 16;

inline __m256i first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

inline Vec vset(float x) { return {_mm256_set1_ps(x)}; }

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
// a / b for results of 16 bits, as exactly as needed or more.
inline Vec vover_16(Vec a, Vec b) { return a / b; }
// a * b + c
inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
inline Vec vmax(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec vmin(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec vabs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec vsqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even.
inline Vec vround(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The same as 32-bit integers; any where a is NaN or beyond them.
inline __m256i vnearest(Vec a) { return _mm256_cvtps_epi32(a.v); }

// a * 2^n for integral n and a near 1: 0 below -125, infinity from 128.
inline Vec vscale2(Vec a, Vec n) {
  const __m256 least = _mm256_set1_ps(-125.0f), kept = _mm256_cmp_ps(n.v, least, _CMP_NLT_UQ);
  const __m256 bounded = _mm256_min_ps(_mm256_set1_ps(128.0f), _mm256_max_ps(least, n.v));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(127));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return {_mm256_and_ps(kept, _mm256_mul_ps(a.v, power))};
}

inline float vsum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float vmax_lane(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline float vfirst(Vec a) { return _mm256_cvtss_f32(a.v); }

inline __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

inline __m128i narrow_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_blendv_epi8(_mm256_add_epi32(u, bias), quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

inline __m128i narrow_f16(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <class T>
__m128i load_halves_n(const T* p, int n) {
  T buffer[VL] = {};
  std::memcpy(buffer, p, size_t(n) * sizeof(T));
  return _mm_loadu_si128((const __m128i*)buffer);
}

template <class T>
void store_halves_n(T* p, __m128i x, int n) {
  T buffer[VL];
  _mm_storeu_si128((__m128i*)buffer, x);
  std::memcpy(p, buffer, size_t(n) * sizeof(T));
}

inline Vec vload(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec vload(const bf16* p) { return {widen_bf16(_mm_loadu_si128((const __m128i*)p))}; }
inline Vec vload(const f16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
inline Vec vload_n(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline Vec vload_n(const bf16* p, int n) { return {widen_bf16(load_halves_n(p, n))}; }
inline Vec vload_n(const f16* p, int n) { return {_mm256_cvtph_ps(load_halves_n(p, n))}; }

inline void vstore(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline void vstore(bf16* p, Vec a) { _mm_storeu_si128((__m128i*)p, narrow_bf16(a.v)); }
inline void vstore(f16* p, Vec a) { _mm_storeu_si128((__m128i*)p, narrow_f16(a.v)); }
inline void vstore_n(float* p, Vec a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
inline void vstore_n(bf16* p, Vec a, int n) { store_halves_n(p, narrow_bf16(a.v), n); }
inline void vstore_n(f16* p, Vec a, int n) { store_halves_n(p, narrow_f16(a.v), n); }

}  // namespace hotshoe
