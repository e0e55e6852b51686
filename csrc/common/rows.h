// Loops over one row of elements, a vector at a time, with a shorter last step where needed.
//
//   for_vectors(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
//
// compiles to whole loads and stores for the body and masked ones for the end.
#pragma once

#include <cmath>
#include <type_traits>

#include "common/simd.h"

namespace hotshoe {

struct WholeVector {};
struct FirstLanes {
  int count;
};

inline int count(WholeVector) { return VL; }
inline int count(FirstLanes lanes) { return lanes.count; }

template <class T>
Vec load(const T* p, WholeVector) {
  return vload(p);
}
template <class T>
Vec load(const T* p, FirstLanes lanes) {
  return vload_n(p, lanes.count);
}
template <class T>
void store(T* p, Vec v, WholeVector) {
  vstore(p, v);
}
template <class T>
void store(T* p, Vec v, FirstLanes lanes) {
  vstore_n(p, v, lanes.count);
}

template <class F>
inline __attribute__((always_inline)) void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) f(i, WholeVector{});
  if (i < n) f(i, FirstLanes{int(n - i)});
}

template <class From, class To>
void convert_row(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, size_t(n) * sizeof(To));
  } else {
    for_vectors(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
  }
}

// 1 / sqrt(mean of x^2 + eps)
template <class T>
float inverse_rms(const T* x, int64_t n, float eps) {
  Vec squares = vzero();
  for_vectors(n, [&](int64_t i, auto lanes) {
    const Vec v = load(x + i, lanes);
    squares = vfma(v, v, squares);
  });
  return 1.0f / std::sqrt(vsum(squares) / float(n) + eps);
}

}  // namespace hotshoe
