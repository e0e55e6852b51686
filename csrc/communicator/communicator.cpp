// Collectives of the processes of one host, over memory that they share.
//
// Every rank owns two buffers. In each round it copies a piece of its message into one of them,
// raises its ticket, waits until all others' tickets are as high, and reads their buffers. The
// buffer is written again two rounds later; by then everyone has raised the ticket of the round
// between, which they do after reading. So one wait a round is enough, and nobody resets anything.
//
// Who waits spins briefly, then sleeps in the kernel, looking now and then whether the other
// process still lives and whether a signal has come. Sums run in the order of ranks in float,
// rounded once: equal on all ranks.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/parallel.h"
#include "common/rows.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace hotshoe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = HOTSHOE_MAX_RANKS;  // see python/hotshoe_native/_limits.py
constexpr int64_t kBufferBytes = 1 << 20;  // two of them stay in a core's own cache
constexpr int64_t kRingBytes = 1 << 18;
constexpr auto kPolite = std::chrono::microseconds(20);
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kPausesPerClockRead = 32;
constexpr long kSleepNs = 50'000'000;  // between two looks at the others
constexpr int64_t kTaskBytes = 16384;
constexpr int64_t kMinTasks = 4;  // below, waking a thread costs more

// What a rank shows the others. Only its owner writes the ticket.
struct alignas(64) Seat {
  std::atomic<uint32_t> ticket;
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> left;
};

// Bytes on their way from one rank to another: one writer, one reader.
struct alignas(64) Ring {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char data[kRingBytes];
};

int64_t group_nbytes(int size) {
  return size * int64_t(sizeof(Seat)) + size * size * int64_t(sizeof(Ring)) +
         2 * size * kBufferBytes;
}

// Sleeps until somebody wakes `word` or a while has passed, unless it no longer holds `value`.
void sleep_on(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  const timespec time{0, kSleepNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
#endif
}

// Lets Ctrl-C end a wait. Python handles signals only when asked to, in its main thread.
void heed_signals() {
  nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Whether the process behind a pidfd has ended; -1 is nobody, who never ends.
bool has_ended(int pidfd) {
#if defined(__linux__)
  pollfd entry{pidfd, POLLIN, 0};
  return pidfd >= 0 && poll(&entry, 1, 0) == 1;
#else
  return false;
#endif
}

void copy(char* to, const char* from, int64_t nbytes) {
  parallel_for(
      (nbytes + kTaskBytes - 1) / kTaskBytes,
      [&](int64_t begin, int64_t end) {
        const int64_t last = std::min(end * kTaskBytes, nbytes);
        std::memmove(to + begin * kTaskBytes, from + begin * kTaskBytes, last - begin * kTaskBytes);
      },
      kMinTasks);
}

template <class T>
constexpr bool kIsFloat = std::is_same_v<T, float> || std::is_same_v<T, bf16> ||
                          std::is_same_v<T, f16>;

template <class T>
void add_parts(T* out, const std::vector<const T*>& parts, int64_t begin, int64_t n) {
  if constexpr (kIsFloat<T>) {
    for_vectors(n, [&](int64_t i, auto lanes) {
      Vec sum = load(parts[0] + begin + i, lanes);
      for (size_t r = 1; r < parts.size(); ++r) sum += load(parts[r] + begin + i, lanes);
      store(out + begin + i, sum, lanes);
    });
  } else {
    for (int64_t i = begin; i < begin + n; ++i) {
      T sum = parts[0][i];
      for (size_t r = 1; r < parts.size(); ++r) sum = T(sum + parts[r][i]);
      out[i] = sum;
    }
  }
}

// Floats as elsewhere; then what else is summed: int32, int64, double.
template <class F>
decltype(auto) visit_summed(int dtype, F&& f) {
  switch (dtype) {
    case 4: return f(uint32_t{});
    case 5: return f(uint64_t{});
    case 6: return f(double{});
    default: return visit_float(dtype, std::forward<F>(f));
  }
}

class Group {
 public:
  Group(uintptr_t memory, int rank, int size, double timeout_s)
      : rank_(rank), size_(size), timeout_(timeout_s), watched_(size, -1) {
    if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                  " is not a rank of at most " + std::to_string(kMaxRanks));
    }
    seats_ = reinterpret_cast<Seat*>(memory);
    rings_ = reinterpret_cast<Ring*>(seats_ + size);
    buffers_ = reinterpret_cast<char*>(rings_ + size * size);
  }

  void watch(const std::vector<int>& pidfds) { watched_ = pidfds; }

  void reduce(char* out, const char* x, int64_t count, int64_t begin, int64_t end, int dtype) {
    visit_summed(dtype, [&](auto tag) {
      using T = decltype(tag);
      constexpr int64_t kPiece = kBufferBytes / int64_t(sizeof(T));
      for (int64_t at = 0; at < count; at += kPiece) {
        const int64_t n = std::min(kPiece, count - at);
        announce(x + at * int64_t(sizeof(T)), n * int64_t(sizeof(T)));
        await_all();
        const int64_t first = std::max(begin, at), last = std::min(end, at + n);
        if (first >= last) continue;
        sum(reinterpret_cast<T*>(out) + (first - begin), first - at, last - first);
      }
    });
  }

  // Rank r's message has sizes[r] bytes, of which [from[r], to[r]) go to address outs[r].
  void gather(const char* x, const std::vector<int64_t>& sizes, const std::vector<int64_t>& from,
              const std::vector<int64_t>& to, const std::vector<uintptr_t>& outs) {
    const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
    for (int64_t at = 0; at < longest; at += kBufferBytes) {
      announce(x + at, std::clamp<int64_t>(sizes[rank_] - at, 0, kBufferBytes));
      await_all();
      for (int r = 0; r < size_; ++r) {
        const int64_t first = std::max(from[r], at), last = std::min(to[r], at + kBufferBytes);
        if (first < last) {
          copy(reinterpret_cast<char*>(outs[r]) + (first - from[r]), buffer(r) + (first - at),
               last - first);
        }
      }
    }
  }

  // Copies as much as there is room for, and says how much that was.
  int64_t push(int to, const char* x, int64_t nbytes) {
    Ring& ring = rings_[rank_ * size_ + to];
    const uint64_t written = ring.written.load(std::memory_order_relaxed);
    const int64_t room = kRingBytes - int64_t(written - ring.read.load(std::memory_order_acquire));
    const int64_t n = std::min(nbytes, room), at = int64_t(written % kRingBytes);
    const int64_t straight = std::min(n, kRingBytes - at);
    std::memcpy(ring.data + at, x, straight);
    std::memcpy(ring.data, x + straight, n - straight);
    ring.written.store(written + n, std::memory_order_release);
    return n;
  }

  int64_t pull(int from, char* out, int64_t nbytes) {
    Ring& ring = rings_[from * size_ + rank_];
    const uint64_t read = ring.read.load(std::memory_order_relaxed);
    const int64_t there = int64_t(ring.written.load(std::memory_order_acquire) - read);
    const int64_t n = std::min(nbytes, there), at = int64_t(read % kRingBytes);
    const int64_t straight = std::min(n, kRingBytes - at);
    std::memcpy(out, ring.data + at, straight);
    std::memcpy(out + straight, ring.data, n - straight);
    ring.read.store(read + n, std::memory_order_release);
    return n;
  }

  // Throws when a rank has left or its process has ended.
  void check(int r) const {
    const bool ended = has_ended(watched_[r]);
    if (seats_[r].left.load() || ended) {
      throw std::runtime_error("rank " + std::to_string(r) +
                               (ended ? " has ended" : " has left the group"));
    }
  }

  void leave() {
    seats_[rank_].left.store(1);
    wake_all(seats_[rank_].ticket);
  }

 private:
  char* buffer(int r) const {
    return buffers_ + (2 * r + int64_t(ticket() & 1)) * kBufferBytes;
  }

  uint32_t ticket() const { return seats_[rank_].ticket.load(std::memory_order_relaxed); }

  void announce(const char* x, int64_t nbytes) {
    Seat& seat = seats_[rank_];
    const uint32_t next = ticket() + 1;
    copy(buffers_ + (2 * rank_ + int64_t(next & 1)) * kBufferBytes, x, nbytes);
    seat.ticket.store(next, std::memory_order_seq_cst);
    if (seat.sleepers.load(std::memory_order_seq_cst)) wake_all(seat.ticket);
  }

  void await_all() {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) await(r);
    }
  }

  // Tickets wrap around; they are never more than one apart.
  static bool reached(uint32_t theirs, uint32_t mine) { return int32_t(theirs - mine) >= 0; }

  void await(int r) {
    Seat& seat = seats_[r];
    const uint32_t mine = ticket();
    const auto begin = Clock::now();
    auto now = begin;
    do {
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        if (reached(seat.ticket.load(std::memory_order_acquire), mine)) return;
        pause_core();
      }
      now = Clock::now();
      if (now - begin > kPolite) std::this_thread::yield();  // it may wait for this very core
    } while (now - begin < kSpin);
    seat.sleepers.fetch_add(1, std::memory_order_seq_cst);
    try {
      uint32_t theirs;
      for (bool slept = false;
           !reached(theirs = seat.ticket.load(std::memory_order_seq_cst), mine); slept = true) {
        // Not before: Python's lock may be long in coming, and most waits end with the first sleep.
        if (slept) heed_signals();
        check(r);
        if (Clock::now() - begin > timeout_) {
          throw std::runtime_error("rank " + std::to_string(r) + " did not come within " +
                                   std::to_string(int64_t(timeout_.count())) + " s");
        }
        sleep_on(seat.ticket, theirs);
      }
    } catch (...) {
      seat.sleepers.fetch_sub(1);
      throw;
    }
    seat.sleepers.fetch_sub(1);
  }

  // Adds n elements from `begin` on of everyone's buffer.
  template <class T>
  void sum(T* out, int64_t begin, int64_t n) const {
    std::vector<const T*> parts(size_);
    for (int r = 0; r < size_; ++r) parts[r] = reinterpret_cast<const T*>(buffer(r)) + begin;
    constexpr int64_t kTask = kTaskBytes / int64_t(sizeof(T));
    parallel_for(
        (n + kTask - 1) / kTask,
        [&](int64_t first, int64_t last) {
          const int64_t at = first * kTask;
          add_parts(out, parts, at, std::min(last * kTask, n) - at);
        },
        kMinTasks);
  }

  const int rank_, size_;
  const std::chrono::duration<double> timeout_;
  std::vector<int> watched_;
  Seat* seats_;
  Ring* rings_;
  char* buffers_;
};

Group& group(uintptr_t handle) { return *reinterpret_cast<Group*>(handle); }

}  // namespace

void bind_communicator(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  m.def("group_nbytes", &group_nbytes, "size"_a,
        "Return the bytes of shared memory of a group; they start as zeros.");
  m.def(
      "group_open",
      [](uintptr_t memory, int rank, int size, double timeout_s) {
        return reinterpret_cast<uintptr_t>(new Group(memory, rank, size, timeout_s));
      },
      "memory"_a, "rank"_a, "size"_a, "timeout_s"_a,
      "Take a seat in a group and return its handle. All functions below take it; collectives\n"
      "are called by all ranks in the same order, and raise RuntimeError when another rank has\n"
      "left, has ended, or stays away longer than timeout_s.");
  m.def(
      "group_watch", [](uintptr_t h, const std::vector<int>& pidfds) { group(h).watch(pidfds); },
      "handle"_a, "pidfds"_a, "Give a pidfd for each rank, -1 for those not to be watched.");
  m.def(
      "group_reduce",
      [](uintptr_t h, uintptr_t out, uintptr_t x, int64_t count, int64_t begin, int64_t end,
         int dtype) {
        group(h).reduce(reinterpret_cast<char*>(out), reinterpret_cast<const char*>(x), count,
                        begin, end, dtype);
      },
      Release(), "handle"_a, "out"_a, "x"_a, "count"_a, "begin"_a, "end"_a, "dtype"_a,
      "Sum `count` elements of all ranks; elements [begin, end) are written from `out` on, which\n"
      "may be x when begin is 0. dtype: floats as elsewhere, 4 int32, 5 int64, 6 float64.");
  m.def(
      "group_gather",
      [](uintptr_t h, uintptr_t x, const std::vector<int64_t>& sizes,
         const std::vector<int64_t>& from, const std::vector<int64_t>& to,
         const std::vector<uintptr_t>& outs) {
        group(h).gather(reinterpret_cast<const char*>(x), sizes, from, to, outs);
      },
      Release(), "handle"_a, "x"_a, "sizes"_a, "begins"_a, "ends"_a, "outs"_a,
      "Show sizes[rank] bytes to all ranks; of rank r's, copy [begins[r], ends[r]) to outs[r].");
  m.def(
      "group_push",
      [](uintptr_t h, int to, uintptr_t x, int64_t nbytes) {
        return group(h).push(to, reinterpret_cast<const char*>(x), nbytes);
      },
      Release(), "handle"_a, "to"_a, "x"_a, "nbytes"_a,
      "Hand bytes to one rank without waiting; return how many there was room for.");
  m.def(
      "group_pull",
      [](uintptr_t h, int from, uintptr_t out, int64_t nbytes) {
        return group(h).pull(from, reinterpret_cast<char*>(out), nbytes);
      },
      Release(), "handle"_a, "source"_a, "out"_a, "nbytes"_a,
      "Take bytes that one rank has pushed without waiting; return how many there were.");
  m.def(
      "group_check", [](uintptr_t h, int rank) { group(h).check(rank); }, "handle"_a, "rank"_a,
      "Raise RuntimeError if a rank has left or its process has ended.");
  m.def(
      "group_close",
      [](uintptr_t h) {
        group(h).leave();
        delete &group(h);
      },
      "handle"_a, "Leave the group. The memory may be unmapped afterwards.");
}

}  // namespace hotshoe
