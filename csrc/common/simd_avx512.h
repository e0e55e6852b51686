// Vec over AVX-512 (F, BW, DQ, VL): 16 lanes. Included by simd.h only.
#pragma once

#include <immintrin.h>

#include "common/dtype.h"

namespace hotshoe {

struct Vec {
  __m512 v;
};
constexpr int VL = 16;
constexpr int kVectorRegisters = 32;

inline __mmask16 first_lanes(int n) { return __mmask16((1u << n) - 1u); }

inline Vec vset(float x) { return {_mm512_set1_ps(x)}; }

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// a / b for results of 16 bits, relative error below 7e-5; zero where b is infinite.
inline Vec vover_16(Vec a, Vec b) { return {_mm512_mul_ps(a.v, _mm512_rcp14_ps(b.v))}; }
// a * b + c
inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
inline Vec vmax(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec vmin(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec vabs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec vsqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even.
inline Vec vround(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The same as 32-bit integers; any where a is NaN or beyond them.
inline __m512i vnearest(Vec a) { return _mm512_cvtps_epi32(a.v); }
// a * 2^n for integral n and a near 1: 0 below -125, infinity from 128. Never scales to a subnormal
// number, which takes some processors a hundred times as long.
inline Vec vscale2(Vec a, Vec n) {
  const __mmask16 kept = _mm512_cmp_ps_mask(n.v, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(kept, a.v, n.v)};
}
inline float vsum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float vmax_lane(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline float vfirst(Vec a) { return _mm512_cvtss_f32(a.v); }

inline __m512 widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline __m256i narrow_bf16(__m512 x) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(x);
#else
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __m512i rounded = _mm512_mask_mov_epi32(
      _mm512_add_epi32(u, bias), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

inline Vec vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec vload(const bf16* p) { return {widen_bf16(_mm256_loadu_si256((const __m256i*)p))}; }
inline Vec vload(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
inline Vec vload_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline Vec vload_n(const bf16* p, int n) {
  return {widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
inline Vec vload_n(const f16* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}

inline __m256i narrow_f16(__m512 x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void vstore(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void vstore(bf16* p, Vec a) { _mm256_storeu_si256((__m256i*)p, narrow_bf16(a.v)); }
inline void vstore(f16* p, Vec a) { _mm256_storeu_si256((__m256i*)p, narrow_f16(a.v)); }
inline void vstore_n(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline void vstore_n(bf16* p, Vec a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_bf16(a.v));
}
inline void vstore_n(f16* p, Vec a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_f16(a.v));
}

#ifdef __AVX512BF16__
// One conversion for both, where simd.h has two.
inline void vstore_pair(bf16* p, Vec a, Vec b) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v));
}
#endif

}  // namespace hotshoe
