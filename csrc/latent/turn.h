// The rotation of pairs of neighbors, forwards or back.
//
// Source: Su et al. 2021, arXiv:2104.09864.
#pragma once

#include <cstdint>

namespace hotshoe::latent {

// Turns (x[2i], x[2i + 1]) by the angles whose cosines and sines are given, times `sign`.
inline void turn_pairs(float* x, const float* cos, const float* sin, int64_t pairs, float sign) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], s = sign * sin[i];
    x[2 * i] = a * cos[i] - b * s;
    x[2 * i + 1] = b * cos[i] + a * s;
  }
}

}  // namespace hotshoe::latent
