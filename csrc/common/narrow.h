// Numbers of 8 bits as the KV cache keeps them, and vectors of them from and to floats.
//
// Every such number is a bfloat16, too: loads give those, in pairs as dot products take them.
// Source of the 8-bit floats: Micikevicius et al. 2022, arXiv:2209.05433.
#pragma once

#include <stdexcept>
#include <string>

#include "common/rows.h"
#include "common/words.h"

namespace hotshoe {

struct i8 {
  int8_t number;
  static constexpr float kLimit = 127;
};

// A sign, an exponent, and M bits of mantissa; codes of magnitudes from kSpecial on are no numbers.
template <int M, int Special>
struct Float8 {
  uint8_t bits;
  static constexpr int kMantissa = M, kBias = (1 << (6 - M)) - 1, kSpecial = Special;
  static constexpr float kLimit = M == 3 ? 448 : 57344;
};
using e4m3 = Float8<3, 0x7f>;
using e5m2 = Float8<2, 0x7c>;

template <class S>
constexpr bool kIsNarrow = sizeof(S) == 1;

// Calls f with a value of the type that a cache keeps beside elements T: T itself, or 8 bits.
template <class T, class F>
void visit_stored(int dtype, int stored, F&& f) {
  if (stored == dtype) return f(T{});
  switch (stored) {
    case 3: return f(i8{});
    case 4: return f(e4m3{});
    case 5: return f(e5m2{});
    default: break;
  }
  throw std::invalid_argument("cache dtype code " + std::to_string(stored) +
                              " is neither that of the elements nor 3 int8, 4 float8_e4m3fn or "
                              "5 float8_e5m2");
}

// What arguments of a kernel say of a cache's type: nothing where it is that of the elements. Returns
// the type's code.
template <class Args>
int stored_as(Args&, int dtype) {
  return dtype;
}

template <class Args>
int stored_as(Args& args, int, int kv_dtype, uintptr_t kv_scales, bool token_scales) {
  args.kv_scales = reinterpret_cast<const float*>(kv_scales);
  args.token_scales = token_scales;
  return kv_dtype;
}

namespace detail {

typedef uint16_t HalfLanes __attribute__((vector_size(VL * 2)));
typedef int8_t ByteLanes __attribute__((vector_size(VL)));

// The floats whose codes are the low bytes of the words, as words.
inline IntLanes widen_bytes(IntLanes words, i8) {
  return (IntLanes)__builtin_convertvector((words << 24) >> 24, FloatLanes);
}

template <int M, int Special>
IntLanes widen_bytes(IntLanes words, Float8<M, Special>) {
  const IntLanes magnitude = words & 0x7f, placed = magnitude << (23 - M);
  // The exponent bias differs; multiplying also makes subnormals exact.
  const uint32_t power = uint32_t(254 - Float8<M, Special>::kBias) << 23;
  const IntLanes finite = (IntLanes)((FloatLanes)placed * bits_float(power));
  const IntLanes special = (placed & 0x7fffff) | 0x7f800000;
  const IntLanes is_special = magnitude >= Special;
  return ((words & 0x80) << 24) | (is_special & special) | (~is_special & finite);
}

// Pairs of codes in the low halves of the words, as pairs of bfloat16.
template <class S>
IntLanes widen_pairs(IntLanes pairs, S tag) {
  const IntLanes even = widen_bytes(pairs & 0xff, tag), odd = widen_bytes(pairs >> 8, tag);
  return ((even >> 16) & 0xffff) | (odd & int32_t(0xffff0000));
}

#if defined(__AVX512BW__)

// The magnitudes of all codes as bfloat16.
template <class S>
struct Magnitudes {
  alignas(64) uint16_t bits[128];
  constexpr Magnitudes() : bits{} {
    constexpr int M = S::kMantissa;
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> M, mantissa = code & ((1 << M) - 1);
      if (code >= S::kSpecial) {
        bits[code] = uint16_t(0x7f80 | mantissa << (7 - M));
        continue;
      }
      if (exponent == 0 && mantissa > 0) {  // subnormal here, but not there
        for (exponent = 1; mantissa < 1 << M; mantissa <<= 1) --exponent;
        mantissa -= 1 << M;
      } else if (exponent == 0) {
        continue;
      }
      bits[code] = uint16_t((exponent + 127 - S::kBias) << 7 | mantissa << (7 - M));
    }
  }
};
template <class S>
inline constexpr Magnitudes<S> kMagnitudes{};

template <class S>
__m512i widen_bytes(__m256i codes) {
  const auto* table = reinterpret_cast<const __m512i*>(kMagnitudes<S>.bits);
  const __m512i wide = _mm512_cvtepu8_epi16(codes);
  const __m512i low = _mm512_permutex2var_epi16(table[0], wide, table[1]);
  const __m512i high = _mm512_permutex2var_epi16(table[2], wide, table[3]);
  const __mmask32 is_high = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x40));
  const __m512i magnitude = _mm512_mask_mov_epi16(low, is_high, high);
  // Magnitudes, and the signs alone of what is shifted.
  return _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(wide, 8),
                                   _mm512_set1_epi16(int16_t(0x8000)), 0xf8);
}

template <>
inline __m512i widen_bytes<i8>(__m256i codes) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
#ifdef __AVX512BF16__
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
  const __m256i first = narrow_bf16(low), second = narrow_bf16(high);
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
#endif
}

#endif

}  // namespace detail

// 2 VL neighbors as pairs of bfloat16.
template <class S>
IntLanes load_pairs(const S* p) {
#if defined(__AVX512BW__)
  return (IntLanes)detail::widen_bytes<S>(_mm256_loadu_si256((const __m256i*)p));
#else
  detail::HalfLanes pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  return detail::widen_pairs(__builtin_convertvector(pairs, IntLanes), S{});
#endif
}

// The first n pairs; the others are zero.
template <class S>
IntLanes load_pairs_n(const S* p, int n) {
  S pairs[2 * VL] = {};
  std::memcpy(pairs, p, size_t(n) * 2);
  return load_pairs(pairs);
}

// n numbers, an even number, as bfloat16.
template <class S>
void widen_row(const S* from, bf16* to, int n) {
  int i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const IntLanes pairs = load_pairs(from + i);
    std::memcpy(to + i, &pairs, sizeof pairs);
  }
  if (i == n) return;
  const IntLanes pairs = load_pairs_n(from + i, (n - i) / 2);
  std::memcpy(to + i, &pairs, size_t(n - i) * 2);
}

namespace detail {

// Codes of the nearest numbers, ties to even; what is too large becomes the largest.
inline IntLanes narrow(Vec x, i8) {
  const IntLanes is_number = (FloatLanes)x.v == (FloatLanes)x.v;
  return nearest_words(from_words(is_number & to_words(x)));
}

template <int M, int Special>
IntLanes narrow(Vec x, Float8<M, Special>) {
  constexpr int kBias = Float8<M, Special>::kBias, kShift = 23 - M;
  const IntLanes words = to_words(x), magnitude = words & 0x7fffffff;
  const IntLanes rounded = magnitude + ((1 << (kShift - 1)) - 1) + ((magnitude >> kShift) & 1);
  const IntLanes normal = (rounded >> kShift) - ((127 - kBias) << M);
  // Subnormal: adding so large a number leaves the rounded multiple of the least one below.
  constexpr int32_t kLarge = (127 + 24 - kBias - M) << 23;
  const IntLanes sum = to_words(from_words(magnitude) + vset(bits_float(kLarge)));
  const IntLanes is_small = magnitude < ((128 - kBias) << 23);
  const IntLanes is_nan = magnitude > 0x7f800000;
  const IntLanes code = (is_small & (sum - kLarge)) | (~is_small & normal);
  return ((words >> 24) & 0x80) | (is_nan & 0x7f) | (~is_nan & code);
}

}  // namespace detail

// Writes n numbers over `scale` with 8 bits each.
template <class T, class S>
void narrow_row(const T* from, int n, float scale, S* to) {
  const Vec divisor = vset(scale), limit = vset(S::kLimit), least = vset(-S::kLimit);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const Vec x = vmax(least, vmin(limit, load(from + i, lanes) / divisor));  // NaN stays
    const auto codes = __builtin_convertvector(detail::narrow(x, S{}), detail::ByteLanes);
    std::memcpy(to + i, &codes, size_t(count(lanes)));
  });
}

// What maps the largest magnitude to the largest number: 1 for zeros, NaN if there is one.
template <class S, class T>
float narrow_scale(const T* from, int n) {
  Vec largest = vzero(), poison = vzero();
  for_vectors(n, [&](int64_t i, auto lanes) {
    const Vec x = load(from + i, lanes);
    largest = vmax(largest, vabs(x));
    poison = vfma(x, vzero(), poison);
  });
  const float found = vmax_lane(largest);
  return (found == 0 ? 1.0f : found / S::kLimit) + vsum(poison);
}

}  // namespace hotshoe
