// A thread takes a strip of channels of all sequences, so that it turns their taps around once.

#include "states/convolution.h"

#include <vector>

#include "activation/gates.h"
#include "common/parallel.h"
#include "common/rows.h"

namespace hotshoe::states {
namespace {

constexpr int64_t kChannels = 256;               // of a strip
constexpr int64_t kMinElementsPerThread = 8192;  // below, waking a thread costs more

// What becomes of the sums.
enum class Behind { silu, nothing, gate };

// Channels [first, first + count) of a convolution; rows in scratch have room for kChannels.
template <class T, class C, Behind kBehind>
class Strip {
  static constexpr bool kGated = kBehind == Behind::gate;

 public:
  Strip(const Convolution& conv, float* scratch, int64_t first)
      : conv_(conv),
        first_(first),
        count_(std::min(kChannels, conv.size - first)),
        back_(conv.width - 1),
        bias_(scratch),
        taps_(bias_ + kChannels),
        carried_(taps_ + conv.width * kChannels) {
    std::fill_n(scratch, floats(conv), 0.0f);
    const T* taps = (const T*)conv.taps + first * conv.width;
    for (int64_t c = 0; c < count_; ++c) {
      for (int64_t w = 0; w < conv.width; ++w) {
        taps_[w * kChannels + c] = to_float(taps[c * conv.width + w]);
      }
    }
    if (conv.bias) convert_row((const T*)conv.bias + first, bias_, count_);
  }

  static int64_t floats(const Convolution& conv) { return 2 * conv.width * kChannels; }

  using Out = std::conditional_t<kGated, T, float>;

  void run(const Sequences& sequences, const Sequence& s, Out* out) {
    carry_on(sequences, s);
    const T* rows = (const T*)conv_.inputs + s.begin * conv_.stride + first_;
    for (int64_t t = 0; t < s.count; ++t) {
      Out* to = out + (s.begin + t) * conv_.size + first_;
      for_vectors(count_, [&](int64_t i, auto lanes) {
        Vec sum = vload(bias_ + i);
        for (int64_t w = 0, at = t - back_; w <= back_; ++w, ++at) {
          const Vec x = at < 0 ? vload(carried_ + (back_ + at) * kChannels + i)
                               : input(rows + at * conv_.stride + i, lanes);
          sum = vfma(x, vload(taps_ + w * kChannels + i), sum);
        }
        if constexpr (kGated) {
          store(to + i, sum * load(rows + t * conv_.stride + conv_.size + i, lanes), lanes);
        } else {
          store(to + i, kBehind == Behind::silu ? Silu{}.apply<float>(sum) : sum, lanes);
        }
      });
    }
    for (int64_t done = 0; done < s.count;) {
      done = sequences.next_kept(s, done);
      const int64_t block = sequences.block(s, s.before + done);
      keep(rows, done, conv_.cache.place<C>(block, first_, back_ * conv_.size - first_));
    }
  }

 private:
  // What is convolved.
  template <class L>
  Vec input(const T* at, L lanes) const {
    if constexpr (!kGated) return load(at, lanes);
    return load(at, lanes) * load(at + 2 * conv_.size, lanes);
  }

  void carry_on(const Sequences& sequences, const Sequence& s) {
    if (s.before <= 0) return std::fill_n(carried_, back_ * kChannels, 0.0f), void();
    const C* from = conv_.cache.at<C>(sequences.block(s, s.before), first_);
    for (int64_t r = 0; r < back_; ++r) {
      convert_row(from + r * conv_.size, carried_ + r * kChannels, count_);
    }
  }

  // Writes the last inputs in front of `done`.
  void keep(const T* rows, int64_t done, C* to) const {
    for (int64_t r = 0, at = done - back_; r < back_; ++r, ++at, to += conv_.size) {
      if (at < 0) {
        convert_row(carried_ + (back_ + at) * kChannels, to, count_);
      } else {
        const T* row = rows + at * conv_.stride;
        for_vectors(count_,
                    [&](int64_t i, auto lanes) { store(to + i, input(row + i, lanes), lanes); });
      }
    }
  }

  const Convolution& conv_;
  int64_t first_, count_, back_;
  float *bias_, *taps_, *carried_;  // [1, width and width - 1 rows of kChannels]
};

float* results(size_t floats) {
  thread_local std::vector<float> memory;
  if (memory.size() < floats) {
    memory = {};  // not copied
    memory.resize(floats);
  }
  return memory.data();
}

template <Behind kBehind>
void run(const Convolution& conv, const Sequences& sequences, void* out) {
  const int64_t strips = (conv.size + kChannels - 1) / kChannels, count = sequences.count;
  visit_float(conv.dtype, [&](auto in) {
    visit_float(conv.cache.dtype, [&](auto kept) {
      using Run = Strip<decltype(in), decltype(kept), kBehind>;
      const auto job = [&](int64_t begin, int64_t end) {
        auto* scratch = (float*)thread_scratch(Run::floats(conv) * sizeof(float));
        while (begin < end) {
          const int64_t strip = begin / count, last = std::min(end, (strip + 1) * count);
          Run run(conv, scratch, strip * kChannels);
          for (; begin < last; ++begin) {
            const Sequence s = sequences[begin - strip * count];
            if (s.count > 0) run.run(sequences, s, (typename Run::Out*)out);
          }
        }
      };
      const int64_t elements = kChannels * sequences.tokens() / std::max<int64_t>(1, count);
      parallel_for(strips * count, job, rows_holding(kMinElementsPerThread, elements));
    });
  });
}

}  // namespace

float* convolve(const Convolution& conv, const Sequences& sequences) {
  float* out = results(size_t(sequences.tokens() * conv.size));
  convolve(conv, sequences, out);
  return out;
}

void convolve(const Convolution& conv, const Sequences& sequences, float* out) {
  conv.silu ? run<Behind::silu>(conv, sequences, out) : run<Behind::nothing>(conv, sequences, out);
}

void convolve_gated(const Convolution& conv, const Sequences& sequences, void* out) {
  run<Behind::gate>(conv, sequences, out);
}

}  // namespace hotshoe::states
