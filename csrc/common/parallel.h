// The thread pool of one loaded module: fork/join over ranges of tasks, and scratch memory.
//
// Workers spin briefly after a job, so that the next operation of a step finds them awake, and
// then sleep, so that an idle engine burns no CPU. The calling thread is always thread 0 and
// does its share. A child process after fork() makes its own workers at its first job.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace hotshoe {

// Sets the number of threads (the caller counts, so n - 1 workers) and, when `cores` is not
// empty, the core that each is bound to: cores[i] for thread i. The caller's own thread
// (cores[0]) is left as it is. Waits for a job that runs. Throws std::runtime_error when the system
// starts no more threads; the earlier ones then stay.
void set_threads(int n, const std::vector<int>& cores);
int num_threads();

// As many rows as hold so many elements, at least one: what a thread is worth waking for.
inline int64_t rows_holding(int64_t elements, int64_t row) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, row));
}

// Tells the processor that this is a loop that waits.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The calling thread's scratch memory: at least `bytes`, 64-byte aligned, contents undefined,
// valid until the thread's next call. Threads never share it.
void* thread_scratch(size_t bytes);

namespace detail {
using RangeFn = void (*)(void* context, int64_t begin, int64_t end);
void run_parallel(int64_t n_tasks, int threads, RangeFn fn, void* context);
}  // namespace detail

// Calls fn(begin, end) on contiguous, even ranges that cover [0, n_tasks), one range per
// thread, and returns when all are done. A thread gets at least `min_tasks` tasks, so small work
// stays on the calling thread. A call from inside fn runs serially. What fn throws, the caller gets.
template <class F>
void parallel_for(int64_t n_tasks, F&& fn, int64_t min_tasks = 1) {
  int64_t threads = num_threads();
  if (n_tasks < threads * min_tasks) threads = n_tasks / min_tasks;
  if (threads <= 1) {
    if (n_tasks > 0) fn(int64_t(0), n_tasks);
    return;
  }
  using Fn = std::remove_reference_t<F>;
  detail::run_parallel(
      n_tasks, int(threads),
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Fn*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

// Calls fn(task) for each task in [0, n_tasks), which threads take one at a time: for few tasks of
// uneven length.
template <class F>
void parallel_dynamic(int64_t n_tasks, F&& fn) {
  std::atomic<int64_t> next{0};
  auto drain = [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) fn(i);
  };
  parallel_for(std::min<int64_t>(n_tasks, num_threads()), drain);
}

// Calls fn(begin, end, following) on chunks of tasks that cover [0, n_tasks), each thread on those
// of its own, even range first, then on what others have left of theirs: for tasks whose neighbors
// want the same operands. A thread claims its next chunk, which begins at `following`, before it
// runs the present one, so that it can fetch operands early; n_tasks when there is none.
template <class F>
void parallel_chunks(int64_t n_tasks, int64_t chunk, F&& fn) {
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  const int64_t threads = std::min<int64_t>((n_tasks + chunk - 1) / chunk, num_threads());
  std::vector<Range> ranges(threads);
  for (int64_t i = 0; i < threads; ++i) {
    ranges[i].next = n_tasks * i / threads;
    ranges[i].end = n_tasks * (i + 1) / threads;
  }
  struct Chunk {
    int64_t begin, end;
  };
  const auto claim = [&](int64_t thread) -> Chunk {
    for (int64_t i = 0; i < threads; ++i) {
      Range& range = ranges[(thread + i) % threads];
      if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
      const int64_t begin = range.next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin < range.end) return {begin, std::min(begin + chunk, range.end)};
    }
    return {n_tasks, n_tasks};
  };
  parallel_for(threads, [&](int64_t thread, int64_t) {
    for (Chunk now = claim(thread), next; now.begin < n_tasks; now = next) {
      next = claim(thread);
      fn(now.begin, now.end, next.begin);
    }
  });
}

}  // namespace hotshoe
