// The recurrence of one head, of which state spaces and the gated delta rule are two kinds.
//
// A state S [values, keys] forgets, then takes what a token adds: S <- S diag(decay) + new k^T, and
// gives y = S q. The delta rule replaces what its key finds: new = beta (v - S k). Otherwise new = v.
//
// One token reads and writes the state where it lies in the cache. Several go chunk by chunk, whose
// matrix products have the state transposed in scratch memory. Within a chunk, what replaces solves
// a triangular system. What is left of a token at a later one is a product of decays, each at most
// 1: no exponent is a difference, so nothing overflows and no digit is lost, for decays by channel
// as for one by head.
//
// Sources: Dao and Gu 2024, arXiv:2405.21060; Yang et al. 2024, arXiv:2412.06464; Kimi Team 2025,
// arXiv:2510.26692.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "common/parallel.h"
#include "common/rows.h"
#include "states/sequences.h"

namespace hotshoe::states {

constexpr int64_t kChunk = 16;      // tokens: longer chunks have more products, none of them faster
constexpr int64_t kPanel = 2 * VL;  // values side by side
constexpr int kTile = kVectorRegisters >= 32 ? 8 : 6;  // rows of a product in registers
constexpr float kLeast = 1e-30f;  // of what is left: smaller numbers are slow, and change nothing
constexpr int64_t kAhead = 8192;  // entries of a state that are fetched early
constexpr int64_t kMinEntries = 32768;  // of states times tokens; below, waking a thread costs more

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Calls f(row, constant number of rows) for tiles that cover all rows.
template <class F>
void for_tiles(int64_t rows, const F& f) {
  int64_t row = 0;
  for (; row + kTile <= rows; row += kTile) f(row, std::integral_constant<int, kTile>{});
  for (; row + 2 <= rows; row += 2) f(row, std::integral_constant<int, 2>{});
  if (row < rows) f(row, std::integral_constant<int, 1>{});
}

// Cuts memory into arrays of whole vectors; `floats` is the sum once all are cut.
struct Cut {
  float* memory;
  int64_t floats = 0;

  float* operator()(int64_t n) {
    float* found = memory ? memory + floats : nullptr;
    floats += round_up(n, 16);
    return found;
  }
};

// Up to kChunk tokens of a head. Rows have wide_keys or wide_values elements, zeros behind.
struct Tokens {
  int64_t values, keys, wide_values, wide_keys;
  float *q, *k, *v, *y;
  float* beta;   // [kChunk]
  float* decay;  // [kChunk], or rows of keys where channels have decays of their own

  Tokens(Cut& cut, int64_t values, int64_t keys)
      : values(values),
        keys(keys),
        wide_values(round_up(values, kPanel)),
        wide_keys(round_up(keys, VL)),
        q(cut(kChunk * wide_keys)),
        k(cut(kChunk * wide_keys)),
        v(cut(kChunk * wide_values)),
        y(cut(kChunk * wide_values)),
        beta(cut(kChunk)),
        decay(cut(kChunk * wide_keys)) {
    if (cut.memory && (keys < wide_keys || values < wide_values)) {
      std::fill(q, decay + kChunk * wide_keys, 0.0f);
    }
  }
};

template <bool kDelta, bool kChannel>
class Recurrence {
 public:
  Recurrence(Cut& cut, Tokens& tokens)
      : t_(tokens),
        state_(cut(t_.wide_values * t_.keys)),
        met_(cut(2 * kChunk * t_.wide_keys)),
        kept_(cut(kChunk * t_.wide_keys)),
        total_(cut(t_.wide_keys)),
        left_(cut(t_.wide_keys)),
        found_(cut(2 * kChunk * t_.wide_values)),
        new_(cut(kChunk * t_.wide_values)),
        pairs_(cut(kChunk * kChunk)),
        scores_(cut(kChunk * kChunk)) {}

  // Takes token 0 alone, from one state to another, which may be the same; null is a state of zeros.
  template <class S>
  void step(const S* from, S* to) {
    if (!from) {
      std::fill_n(to, t_.values * t_.keys, from_float<S>(0.0f));
      from = to;
    }
    Vec pair = vzero();
    for (int64_t i = 0; i < t_.wide_keys; i += VL) {
      const Vec q = vload(t_.q + i), k = vload(t_.k + i), decay = decay_of(0, i);
      pair = vfma(q, k, pair);
      vstore(met_ + i, k * decay);
      vstore(met_ + t_.wide_keys + i, q * decay);
    }
    const float own = vsum(pair);
    int64_t row = 0;
    for (; row + 4 <= t_.values; row += 4) step_rows<4>(from, to, row, own);
    for (; row < t_.values; ++row) step_rows<1>(from, to, row, own);
  }

  int64_t entries() const { return t_.values * t_.keys; }  // of a state

  void clear() { std::fill_n(state_, t_.wide_values * t_.keys, 0.0f); }

  template <class S>
  void load_state(const S* from) {
    if (t_.values < t_.wide_values) clear();
    for (int64_t v = 0; v < t_.values; ++v) {
      float* to = column(v);
      for (int64_t k = 0; k < t_.keys; ++k) to[k * kPanel] = to_float(from[v * t_.keys + k]);
    }
  }

  template <class S>
  void store_state(S* to) const {
    for (int64_t v = 0; v < t_.values; ++v) {
      const float* from = column(v);
      for (int64_t k = 0; k < t_.keys; ++k) to[v * t_.keys + k] = from_float<S>(from[k * kPanel]);
    }
  }

  // Takes the first `count` tokens.
  void chunk(int64_t count) {
    weigh(count);
    compare(count);
    const int64_t rows = kDelta ? 2 * count : count;
    for (int64_t p = 0; p < t_.wide_values; p += kPanel) {
      for_tiles(rows, [&](int64_t row, auto tile) { meet<tile>(p, row); });
      replace(count, p);
      for_tiles(t_.keys, [&](int64_t key, auto tile) { renew<tile>(count, p, key); });
    }
  }

 private:
  float* column(int64_t v) const {
    return state_ + v / kPanel * kPanel * t_.keys + v % kPanel;
  }

  Vec decay_of(int64_t token, int64_t key) const {
    return kChannel ? vload(t_.decay + token * t_.wide_keys + key) : vset(t_.decay[token]);
  }

  template <int R, class S>
  void step_rows(const S* from, S* to, int64_t row, float own) {
    // Copies, since the compiler must expect that stores change what members say.
    const int64_t size = t_.keys;
    const float *met = met_, *queries = met_ + t_.wide_keys, *keys = t_.k, *decays = t_.decay;
    const Vec common = vset(decays[0]);
    from += row * size;
    to += row * size;
    Vec found[R], result[R], added[R];
    for (int r = 0; r < R; ++r) found[r] = result[r] = vzero();
    for_vectors(size, [&](int64_t i, auto lanes) {
      const Vec k = vload(met + i), q = vload(queries + i);
      for (int r = 0; r < R; ++r) {
        const Vec s = load(from + r * size + i, lanes);
        __builtin_prefetch(from + r * size + i + kAhead);
        if (kDelta) found[r] = vfma(s, k, found[r]);
        result[r] = vfma(s, q, result[r]);
      }
    });
    for (int r = 0; r < R; ++r) {
      const float v = t_.v[row + r], n = kDelta ? t_.beta[0] * (v - vsum(found[r])) : v;
      t_.y[row + r] = vsum(result[r]) + n * own;
      added[r] = vset(n);
    }
    for_vectors(size, [&](int64_t i, auto lanes) {
      const Vec k = vload(keys + i), decay = kChannel ? vload(decays + i) : common;
      for (int r = 0; r < R; ++r) {
        const int64_t at = r * size + i;
        store(to + at, vfma(added[r], k, load(from + at, lanes) * decay), lanes);
      }
    });
  }

  // Weighs keys and queries by what is left at them of the state in front of the chunk, and keys by
  // what is left of them behind it.
  void weigh(int64_t count) {
    const Vec least = vset(kLeast);
    for (int64_t i = 0; i < t_.wide_keys; i += VL) {
      Vec left = vset(1.0f);
      for (int64_t n = 0; n < count; ++n) {
        left = vmax(least, left * decay_of(n, i));
        float* row = met_ + n * t_.wide_keys + i;
        if (kDelta) {
          vstore(row, left * vload(t_.k + n * t_.wide_keys + i));
          row += count * t_.wide_keys;
        }
        vstore(row, left * vload(t_.q + n * t_.wide_keys + i));
      }
      vstore(total_ + i, left);
      left = vset(1.0f);
      for (int64_t n = count - 1; n >= 0; --n) {
        vstore(kept_ + n * t_.wide_keys + i, left * vload(t_.k + n * t_.wide_keys + i));
        left = vmax(least, left * decay_of(n, i));
      }
    }
  }

  // Products of keys and queries with earlier keys, weighed by what is left of those.
  void compare(int64_t count) {
    const int64_t wide = t_.wide_keys;
    const Vec least = vset(kLeast);
    for (int64_t j = 0; j < count; ++j) {
      if (kChannel) std::fill_n(left_, wide, 1.0f);
      float left = 1.0f;
      for (int64_t i = j; i < count; ++i) {
        if (!kChannel && i > j) left = std::max(kLeast, left * t_.decay[i]);
        Vec pair = vzero(), score = vzero();
        for (int64_t c = 0; c < wide; c += VL) {
          Vec k = vload(t_.k + j * wide + c);
          if (kChannel) {
            Vec weight = vload(left_ + c);
            if (i > j) vstore(left_ + c, weight = vmax(least, weight * decay_of(i, c)));
            k *= weight;
          }
          if (kDelta) pair = vfma(vload(t_.k + i * wide + c), k, pair);
          score = vfma(vload(t_.q + i * wide + c), k, score);
        }
        if (kDelta) pairs_[i * kChunk + j] = t_.beta[i] * left * vsum(pair);
        scores_[i * kChunk + j] = left * vsum(score);
      }
    }
  }

  // found[row + m] = met[row + m] S^T for M rows.
  template <int M>
  void meet(int64_t panel, int64_t row) {
    const float* state = state_ + panel * t_.keys;
    const float* rows = met_ + row * t_.wide_keys;
    Vec sums[M][2];
    for (auto& sum : sums) sum[0] = sum[1] = vzero();
    for (int64_t k = 0; k < t_.keys; ++k) {
      const Vec left = vload(state + k * kPanel), right = vload(state + k * kPanel + VL);
      for (int m = 0; m < M; ++m) {
        const Vec by = vset(rows[m * t_.wide_keys + k]);
        sums[m][0] = vfma(by, left, sums[m][0]);
        sums[m][1] = vfma(by, right, sums[m][1]);
      }
    }
    for (int m = 0; m < M; ++m) {
      float* to = found_ + (row + m) * t_.wide_values + panel;
      vstore_pair(to, sums[m][0], sums[m][1]);
    }
  }

  // What tokens add, and their results.
  void replace(int64_t count, int64_t panel) {
    const int64_t wide = t_.wide_values;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = i * wide + panel;
      const float* before = found_ + (kDelta ? count * wide : 0) + at;
      Vec left = vload(t_.v + at), right = vload(t_.v + at + VL);
      Vec results[2] = {vload(before), vload(before + VL)};
      if (kDelta) {
        const Vec beta = vset(t_.beta[i]);
        left = beta * (left - vload(found_ + at));
        right = beta * (right - vload(found_ + at + VL));
      }
      for (int64_t j = 0; j < i; ++j) {
        const Vec one = vload(new_ + j * wide + panel), two = vload(new_ + j * wide + panel + VL);
        if (kDelta) {
          const Vec by = vset(-pairs_[i * kChunk + j]);
          left = vfma(by, one, left);
          right = vfma(by, two, right);
        }
        const Vec score = vset(scores_[i * kChunk + j]);
        results[0] = vfma(score, one, results[0]);
        results[1] = vfma(score, two, results[1]);
      }
      vstore_pair(new_ + at, left, right);
      const Vec own = vset(scores_[i * kChunk + i]);
      vstore_pair(t_.y + at, vfma(own, left, results[0]), vfma(own, right, results[1]));
    }
  }

  // The state behind the chunk, M keys of it.
  template <int M>
  void renew(int64_t count, int64_t panel, int64_t key) {
    float* state = state_ + panel * t_.keys + key * kPanel;
    Vec sums[M][2];
    for (int m = 0; m < M; ++m) {
      const Vec total = vset(total_[key + m]);
      sums[m][0] = total * vload(state + m * kPanel);
      sums[m][1] = total * vload(state + m * kPanel + VL);
    }
    for (int64_t n = 0; n < count; ++n) {
      const float* added = new_ + n * t_.wide_values + panel;
      const Vec left = vload(added), right = vload(added + VL);
      for (int m = 0; m < M; ++m) {
        const Vec by = vset(kept_[n * t_.wide_keys + key + m]);
        sums[m][0] = vfma(by, left, sums[m][0]);
        sums[m][1] = vfma(by, right, sums[m][1]);
      }
    }
    for (int m = 0; m < M; ++m) vstore_pair(state + m * kPanel, sums[m][0], sums[m][1]);
  }

  Tokens& t_;
  float* state_;           // panels of [keys, kPanel]
  float* met_;             // keys and queries that meet the state in front of the chunk
  float* kept_;            // keys as they are left behind the chunk
  float *total_, *left_;   // [wide_keys] decays of the chunk, and up to a token
  float *found_, *new_;    // what keys and queries find; what tokens add
  float *pairs_, *scores_; // [kChunk, kChunk]
};

// Runs a head of a sequence: `take(first, count)` fills the tokens' operands and `give(first, count)`
// uses their results, tokens counted in the step.
template <bool kDelta, bool kChannel, class Take, class Give>
void run_head(Recurrence<kDelta, kChannel>& recurrence, const Sequences& sequences,
              const Sequence& s, const Cache& cache, int64_t offset, Take&& take, Give&& give) {
  visit_float(cache.dtype, [&](auto tag) {
    using S = decltype(tag);
    const auto state = [&](int64_t length) -> const S* {
      return cache.at<S>(sequences.block(s, length), offset);
    };
    const auto place = [&](int64_t length) {
      return cache.place<S>(sequences.block(s, length), offset, recurrence.entries());
    };
    if (s.count == 1) {
      take(s.begin, int64_t(1));
      recurrence.step(s.before > 0 ? state(s.before) : nullptr, place(s.before + 1));
      return give(s.begin, int64_t(1));
    }
    s.before > 0 ? recurrence.load_state(state(s.before)) : recurrence.clear();
    for (int64_t done = 0; done < s.count;) {
      const int64_t kept = sequences.next_kept(s, done);
      while (done < kept) {
        const int64_t count = std::min(kChunk, kept - done);
        take(s.begin + done, count);
        recurrence.chunk(count);
        give(s.begin + done, count);
        done += count;
      }
      recurrence.store_state(place(s.before + kept));
    }
  });
}

// Calls fn(sequence, head) for all heads, those of long sequences first: they take longest.
template <class F>
void for_heads(const Sequences& sequences, int64_t heads, int64_t entries, F&& fn) {
  thread_local std::vector<int32_t> order;
  order.clear();
  for (const bool prompts : {true, false}) {
    for (int64_t i = 0; i < sequences.count; ++i) {
      const int64_t count = sequences[i].count;
      if (prompts ? count > 1 : count == 1) order.push_back(int32_t(i));
    }
  }
  const int32_t* rows = order.data();
  const int64_t tasks = int64_t(order.size()) * heads;
  const auto task = [&](int64_t i) { fn(sequences[rows[i / heads]], i % heads); };
  if (sequences.tokens() * heads * entries >= kMinEntries) return parallel_dynamic(tasks, task);
  for (int64_t i = 0; i < tasks; ++i) task(i);
}

}  // namespace hotshoe::states
