// Number formats of tensors: their codes at the Python boundary and their scalar types.
// Conversions here are portable and per element; the vectorized ones are in simd.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hotshoe {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return bits_float(uint32_t(x.bits) << 16); }

inline float to_float(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // The exponent bias differs by 112; multiplying by 2^112 also makes subnormals exact.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * bits_float(0x77800000u)));
}

template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

// Round to nearest even; NaN stays NaN.
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = float_bits(x);
  if (x != x) return {uint16_t((u >> 16) | 0x40u)};
  return {uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Round to nearest even; too large becomes infinity; NaN stays NaN.
template <>
inline f16 from_float<f16>(float x) {
  const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x47800000u) return {uint16_t(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    return {uint16_t(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
}

// Calls f with a value of the floating type that a dtype code names: f(float{}), f(bf16{}) ...
template <class F>
decltype(auto) visit_float(int dtype, F&& f) {
  switch (DType(dtype)) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    default: break;
  }
  throw std::invalid_argument("dtype code " + std::to_string(dtype) +
                              " is not a float: 0 float32, 1 bfloat16, 2 float16");
}

}  // namespace hotshoe
