// The short causal convolution over the inputs that sequences carry on: in front of a recurrence, or
// between two gates.
#pragma once

#include "states/sequences.h"

namespace hotshoe::states {

struct Convolution {
  const void* inputs;  // [tokens, size]; between gates [tokens, gate | gate behind | x]
  int64_t stride;      // elements from token to token
  const void* taps;    // [size, width]; the last column is for the token itself
  const void* bias;    // [size], or null
  int64_t size, width;
  int dtype;
  Cache cache;  // blocks of [width - 1, size], the oldest inputs first
  bool silu = true;  // follows the sums
};

// Convolves a step's inputs, applies SiLU if it follows, and keeps the last inputs of each sequence.
//
// Returns [tokens, size]: memory of the calling thread, valid until its next call.
float* convolve(const Convolution& conv, const Sequences& sequences);

// The same into `out`.
void convolve(const Convolution& conv, const Sequences& sequences, float* out);

// The same of x times the gate in front of it; the gate behind takes SiLU's place. Writes
// [tokens, size] of the convolution's type.
void convolve_gated(const Convolution& conv, const Sequences& sequences, void* out);

}  // namespace hotshoe::states
