// The sequences of a step, and the blocks of the cache in which their states lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "record/record.h"

namespace hotshoe::states {

// Which states the cache keeps: a sequence's latest one in its first block; that behind a step's
// last token, in the block of that token; in every block that a step completes as well.
enum class Checkpoints : int { none = 0, align = 1, all = 2 };

struct Sequence {
  int64_t begin, count;   // of its tokens in the step
  int64_t before;         // tokens of earlier steps
  const int32_t* blocks;  // by column
};

struct Sequences {
  const int32_t* table;
  int64_t table_stride;
  const int32_t *starts, *lens;  // [count + 1] and [count]
  int64_t count, block_size;
  Checkpoints checkpoints;

  Sequence operator[](int64_t i) const {
    const int64_t tokens = starts[i + 1] - starts[i];
    return {starts[i], tokens, lens[i] - tokens, table + i * table_stride};
  }

  int64_t tokens() const { return starts[count]; }

  // The block of the state behind so many tokens of all steps.
  int64_t block(const Sequence& s, int64_t length) const {
    return s.blocks[checkpoints == Checkpoints::none ? 0 : (length - 1) / block_size];
  }

  // How many tokens of the step lie in front of the next place, behind `done`, whose state is kept.
  int64_t next_kept(const Sequence& s, int64_t done) const {
    if (checkpoints != Checkpoints::all) return s.count;
    return std::min(s.count, done + block_size - (s.before + done) % block_size);
  }
};

// A cache of states, or of the inputs that convolutions carry on. In a rehearsal what would be kept
// is written to memory of the writing thread.
struct Cache {
  void* blocks;
  int64_t stride;  // elements from block to block
  int dtype;
  bool keeps = !rehearsing();

  template <class T>
  T* at(int64_t block, int64_t element = 0) const {
    return static_cast<T*>(blocks) + block * stride + element;
  }

  // Where `count` elements are written.
  template <class T>
  T* place(int64_t block, int64_t element, int64_t count) const {
    if (keeps) return at<T>(block, element);
    thread_local std::vector<T> spare;
    if (spare.size() < size_t(count)) spare.resize(size_t(count));
    return spare.data();
  }
};

}  // namespace hotshoe::states
