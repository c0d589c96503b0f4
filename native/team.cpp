#include "team.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace anode {
namespace {

/// Pieces to be done, and how far that is.
class Job {
 public:
  Job(int count, const std::function<void(int)>& piece) : count_(count), piece_(piece) {}

  /// Does pieces as long as there are any.
  void help() {
    for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      try {
        piece_(i);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        trouble_ = std::current_exception();
      }
    }
  }

  /// To be called when all have helped.
  void finish() {
    if (trouble_) std::rethrow_exception(trouble_);
  }

 private:
  const int count_;
  const std::function<void(int)>& piece_;
  std::atomic<int> next_{0};
  std::mutex mutex_;
  std::exception_ptr trouble_;
};

/// Looks this often before sleeping. Two steps of a solve are some microseconds apart; waking a thread takes tens.
constexpr int kLooks = 4000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

class Team {
 public:
  void run(Job& job, int threads) {
    while (int(workers_.size()) < threads - 1) {
      const int id = int(workers_.size());
      workers_.emplace_back([this, id] { work(id); });
      workers_.back().detach();
    }
    job_ = &job;
    busy_.store(threads - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      round_.store(((round_.load() >> 16) + 1) << 16 | unsigned(threads - 1));
    }
    wake_.notify_all();
    job.help();
    for (int look = 0; busy_.load() > 0; ++look) {
      if (look < kLooks)
        relax();
      else
        std::this_thread::yield();  // the thread that this one waits for may need the CPU
    }
  }

 private:
  void work(int id) {
    std::uint64_t seen = 0;
    for (;;) {
      for (int look = 0; look < kLooks && round_.load() == seen; ++look) relax();
      if (round_.load() == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return round_.load() != seen; });
      }
      seen = round_.load();
      if (id >= int(seen & 0xffff)) continue;
      job_->help();
      busy_.fetch_sub(1);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> round_{0};  // a number that grows, and in its lowest 16 bits how many are to help
  std::atomic<int> busy_{0};
  Job* job_ = nullptr;
};

/// The team of a process. Its threads may be running until the very end, so it is never destroyed.
struct Shared {
  std::mutex in_use;
  Team team;
  const pid_t process = getpid();
};

Shared& shared() {
  static std::atomic<Shared*> current{nullptr};
  Shared* one = current.load();
  while (!one || one->process != getpid()) {  // a forked process has no threads, and the lock may be held for ever
    Shared* fresh = new Shared;
    if (current.compare_exchange_strong(one, fresh)) return *fresh;
    delete fresh;  // another thread was quicker
  }
  return *one;
}

std::atomic<Parallel> borrowed{nullptr};
pid_t borrower = 0;

void help(void* job) { static_cast<Job*>(job)->help(); }

}  // namespace

void borrow_threads(Parallel parallel) {
  borrower = getpid();
  borrowed.store(parallel);
}

void share(int count, int threads, const std::function<void(int)>& piece) {
  threads = threads < count ? threads : count;
  Job job(count, piece);
  if (threads <= 1) {
    job.help();
  } else {
    Shared& common = shared();
    std::unique_lock<std::mutex> lock(common.in_use, std::try_to_lock);
    if (lock.owns_lock())
      common.team.run(job, threads);
    else
      job.help();
  }
  job.finish();
}

void share_borrowed(int count, int threads, const std::function<void(int)>& piece) {
  const Parallel parallel = borrowed.load();
  if (count <= 1 || threads <= 1 || !parallel || borrower != getpid()) {  // OpenMP does not survive a fork
    share(count, threads, piece);
    return;
  }
  Job job(count, piece);
  parallel(help, &job, unsigned(threads), 0);  // with fewer, OpenMP would end the others and make them anew
  job.finish();
}

}  // namespace anode
