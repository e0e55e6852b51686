// The thread pool behind parallel.h.
//
// Every worker has its own ticket. Odd means that a range of the shared job is on offer to it;
// whoever makes it even again runs that range: the worker, or the caller once it has done its
// own. So a worker that sleeps, or whose core is taken by another program, delays nobody.
// Pool objects are never freed: workers may still look at them while the process ends, and a
// forked child abandons its parent's.

#include "common/parallel.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace hotshoe {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the gap between two operations of one step, shorter than anybody would notice.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kPausesPerClockRead = 32;

// Returns once `value` differs from `old`: spins for kSpin, then sleeps.
template <class T>
void await_change(const std::atomic<T>& value, T old) {
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_core();
    }
  } while (Clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

struct Settings {
  int threads = 1;
  std::vector<int> cores;
};

struct Job {
  detail::RangeFn fn = nullptr;
  void* context = nullptr;
  int64_t tasks = 0;
  int threads = 0;

  void run(int thread) const {
    fn(context, tasks * thread / threads, tasks * (thread + 1) / threads);
  }
};

thread_local bool inside_job = false;

void bind_to_core(int core) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
#endif
}

class Pool {
 public:
  explicit Pool(const Settings& settings) : workers_(settings.threads - 1) {
    for (int i = 0; i < int(workers_.size()); ++i) {
      const int core = settings.cores.empty() ? -1 : settings.cores[i + 1];
      try {
        workers_[i].thread = std::thread([this, i, core] { work(i, core); });
      } catch (const std::system_error& error) {
        stop();
        throw std::runtime_error("thread " + std::to_string(i + 2) + " of " +
                                 std::to_string(settings.threads) +
                                 " cannot be started: " + error.code().message());
      }
    }
  }

  void run(Job job) {
    std::lock_guard<std::mutex> one_job_at_a_time(mutex_);
    job.threads = std::min(job.threads, int(workers_.size()) + 1);  // they may have changed
    job_ = job;
    pending_.store(job.threads - 1, std::memory_order_relaxed);
    for (int i = 0; i < job.threads - 1; ++i) offer(workers_[i]);
    inside_job = true;
    run_range(0);
    for (int i = 0; i < job.threads - 1; ++i) {
      if (!take(workers_[i])) continue;
      run_range(i + 1);
      pending_.fetch_sub(1, std::memory_order_relaxed);
    }
    inside_job = false;
    for (int left; (left = pending_.load(std::memory_order_acquire)) != 0;) {
      await_change(pending_, left);
    }
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  // Ends the workers, after the job that is running, if any. Jobs that come later all the same are
  // done by their callers.
  void stop() {
    std::lock_guard<std::mutex> no_job(mutex_);
    stopping_ = true;
    for (Worker& worker : workers_) offer(worker);
    for (Worker& worker : workers_) {
      if (worker.thread.joinable()) worker.thread.join();
    }
  }

 private:
  struct alignas(64) Worker {
    std::atomic<uint32_t> ticket{0};
    std::thread thread;
  };

  static void offer(Worker& worker) {
    worker.ticket.fetch_add(1, std::memory_order_seq_cst);
    worker.ticket.notify_one();
  }

  static bool take(Worker& worker) {
    uint32_t ticket = worker.ticket.load(std::memory_order_relaxed);
    return ticket % 2 == 1 && worker.ticket.compare_exchange_strong(ticket, ticket + 1);
  }

  // What a range throws, most likely for want of memory, is kept for the job's caller.
  void run_range(int thread) noexcept {
    try {
      job_.run(thread);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  void work(int index, int core) {
    if (core >= 0) bind_to_core(core);
    inside_job = true;
    Worker& self = workers_[index];
    for (;;) {
      const uint32_t ticket = self.ticket.load(std::memory_order_relaxed);
      if (!take(self)) {
        if (ticket % 2 == 0) await_change(self.ticket, ticket);
        continue;
      }
      if (stopping_) return;
      run_range(index + 1);
      if (pending_.fetch_sub(1, std::memory_order_seq_cst) == 1) pending_.notify_one();
    }
  }

  std::vector<Worker> workers_;
  std::mutex mutex_;
  Job job_;
  std::exception_ptr error_;  // of the job's first range that failed
  std::atomic<bool> failed_{false};
  bool stopping_ = false;
  alignas(64) std::atomic<int> pending_{0};
};

Settings settings;  // of the present pool, or the next
std::atomic<int> thread_count{1};
std::atomic<Pool*> current_pool{nullptr};
std::mutex pool_mutex;

#if defined(__unix__) || defined(__APPLE__)
// The child has none of its parent's workers, and its locks may be held by threads that are gone.
const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  current_pool.store(nullptr);
  new (&pool_mutex) std::mutex;
  inside_job = false;
});
#endif

Pool& pool() {
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found) return *found;
  std::lock_guard<std::mutex> lock(pool_mutex);
  if (!current_pool.load()) current_pool.store(new Pool(settings));
  return *current_pool.load();
}

struct FreeScratch {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

void set_threads(int n, const std::vector<int>& cores) {
  if (n < 1) throw std::invalid_argument("threads must be at least 1, not " + std::to_string(n));
  if (!cores.empty() && int(cores.size()) != n) {
    throw std::invalid_argument(std::to_string(cores.size()) + " cores for " + std::to_string(n) +
                                " threads; give one core for each thread, or none");
  }
  std::lock_guard<std::mutex> lock(pool_mutex);
  Pool* made = new Pool({n, cores});
  if (Pool* old = current_pool.exchange(made)) old->stop();
  settings = {n, cores};
  thread_count = n;
}

int num_threads() { return thread_count.load(std::memory_order_relaxed); }

void* thread_scratch(size_t bytes) {
  thread_local std::unique_ptr<void, FreeScratch> memory;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    capacity = 0;
    memory.reset(std::aligned_alloc(4096, rounded));
    if (!memory) throw std::bad_alloc();
    capacity = rounded;
  }
  return memory.get();
}

void detail::run_parallel(int64_t n_tasks, int threads, RangeFn fn, void* context) {
  if (inside_job) return fn(context, 0, n_tasks);
  pool().run({fn, context, n_tasks, threads});
}

}  // namespace hotshoe
