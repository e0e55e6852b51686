// Kernels of bfloat16 and float32 weights for every instruction set but AMX.

#include "linear/tile_template.h"

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include "linear/tile_matrix.h"
#endif

namespace hotshoe::linear {
namespace {

constexpr int kVectors = kBlockRows / VL;  // Vecs that hold one value of each of a block's rows

// float32 weights: one k per group.
struct FloatMath {
  using Scalar = float;
  using Sum = Vec;
  using X = Vec;
  using W = Vec;
  static constexpr int kSums = kVectors;
  static constexpr int kXBytes = 4;
  static Vec zero() { return vzero(); }
  static Vec load_x(const char* p) { return vset(*(const float*)p); }
  static Vec load_w(const char* p, int j) { return vload((const float*)p + j * VL); }
  static Vec dot(Vec sum, Vec x, Vec w) { return vfma(x, w, sum); }
  static void store(float* p, Vec sum) { vstore(p, sum); }
};

#ifdef __AVX512BF16__

// Two k per group, in the processor's own dot product.
struct Bf16Math {
  using Scalar = float;
  using Sum = __m512;
  using X = __m512bh;
  using W = __m512bh;
  static constexpr int kSums = 1;
  static constexpr int kXBytes = 4;
  static __m512 zero() { return _mm512_setzero_ps(); }
  static __m512bh load_x(const char* p) {
    int pair;  // rows begin anywhere
    std::memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static __m512bh load_w(const char* p, int) { return (__m512bh)_mm512_loadu_si512(p); }
  static __m512 dot(__m512 sum, __m512bh x, __m512bh w) { return _mm512_dpbf16_ps(sum, x, w); }
  static void store(float* p, __m512 sum) { _mm512_storeu_ps(p, sum); }
};
constexpr Form kBf16Form = Form::bf16;

#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

struct Bf16Math {
  using Scalar = float;
  using Sum = float32x4_t;
  using X = bfloat16x8_t;
  using W = bfloat16x8_t;
  static constexpr int kSums = kVectors;
  static constexpr int kXBytes = 4;
  static float32x4_t zero() { return vdupq_n_f32(0); }
  static bfloat16x8_t load_x(const char* p) {
    uint32_t pair;  // rows begin anywhere
    std::memcpy(&pair, p, sizeof pair);
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  }
  static bfloat16x8_t load_w(const char* p, int j) {
    return vld1q_bf16((const bfloat16_t*)p + j * 2 * VL);
  }
  static float32x4_t dot(float32x4_t sum, bfloat16x8_t x, bfloat16x8_t w) {
    return vbfdotq_f32(sum, x, w);
  }
  static void store(float* p, float32x4_t sum) { vst1q_f32(p, sum); }
};

struct Bf16Matrix {
  using Dot = Bf16Math;
  using Sum = float32x4_t;
  static float32x4_t multiply(float32x4_t sum, uint8x16_t x, uint8x16_t w) {
    return vbfmmlaq_f32(sum, vreinterpretq_bf16_u8(x), vreinterpretq_bf16_u8(w));
  }
};

#else

// Two k per group: bfloat16 is the upper half of a float, so a shift and a mask widen it.
struct Pair {
  Vec even, odd;
};

inline Pair widen_pairs(const char* p) {
#if defined(__AVX512F__)
  const __m512i both = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))))}};
#elif defined(__AVX2__)
  const __m256i both = _mm256_loadu_si256((const __m256i*)p);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000u))))}};
#else
  Ints both;
  std::memcpy(&both, p, sizeof both);
  return {{(Floats)(both << 16)}, {(Floats)(both & int32_t(0xffff0000u))}};
#endif
}

struct Bf16Math {
  using Scalar = float;
  using Sum = Vec;
  using X = Pair;
  using W = Pair;
  static constexpr int kSums = kVectors;
  static constexpr int kXBytes = 8;
  static Vec zero() { return vzero(); }
  static Pair load_x(const char* p) {
    return {vset(((const float*)p)[0]), vset(((const float*)p)[1])};
  }
  static Pair load_w(const char* p, int j) { return widen_pairs(p + j * VL * 4); }
  static Vec dot(Vec sum, const Pair& x, const Pair& w) {
    return vfma(x.odd, w.odd, vfma(x.even, w.even, sum));
  }
  static void store(float* p, Vec sum) { vstore(p, sum); }
};
constexpr Form kBf16Form = Form::f32;

#endif

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
constexpr Kernel kBf16 = matrix_kernel<Bf16Matrix>(Form::bf16, true);
#else
constexpr Kernel kBf16 = register_kernel<Bf16Math>(kBf16Form, true, 2);
#endif
constexpr Kernel kFloat = register_kernel<FloatMath>(Form::f32, true, 1);

}  // namespace

const Kernel& float_kernel(DType weights) { return weights == DType::bf16 ? kBf16 : kFloat; }

}  // namespace hotshoe::linear
