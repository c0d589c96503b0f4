// Memory that is taken piece by piece and given back all at once.

#pragma once

#include <pthread.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace anode {

/// Hands out aligned memory from large slabs. Fresh pages cost more than the arithmetic done on them, so slabs outlive
/// the solves that use them: see arena().
class Arena {
 public:
  template <class T>
  T* take(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    while (slab_ < slabs_.size() && used_ + bytes > slabs_[slab_].size) {
      ++slab_;
      used_ = 0;
    }
    if (slab_ == slabs_.size()) add(bytes);
    T* place = reinterpret_cast<T*>(slabs_[slab_].memory.get() + used_);
    used_ += bytes;
    return place;
  }

  /// A moment to which rewind() goes back: everything taken since is free again.
  struct Mark {
    std::size_t slab, used;
  };
  Mark mark() const { return {slab_, used_}; }
  void rewind(Mark mark) {
    slab_ = mark.slab;
    used_ = mark.used;
  }

  std::size_t capacity() const {
    std::size_t all = 0;
    for (const Slab& slab : slabs_) all += slab.size;
    return all;
  }

 private:
  static constexpr std::size_t kAlignment = 64, kSlab = 1 << 18;
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t(kAlignment)); }
  };
  struct Slab {
    std::unique_ptr<char[], Free> memory;
    std::size_t size;
  };

  void add(std::size_t bytes) {
    // Each slab doubles what there is, so that there are few.
    std::size_t size = kSlab;
    while (size < bytes || size < capacity()) size *= 2;
    char* memory = static_cast<char*>(::operator new(size, std::align_val_t(kAlignment)));
    slabs_.push_back({std::unique_ptr<char[], Free>(memory), size});
    used_ = 0;
  }

  std::vector<Slab> slabs_;
  std::size_t slab_ = 0, used_ = 0;
};

/// Arenas that are not in use, up to some size.
class Arenas {
 public:
  static Arenas& idle() {
    static Arenas* all = [] {
      pthread_atfork([] { idle().mutex_.lock(); }, [] { idle().mutex_.unlock(); }, [] { idle().mutex_.unlock(); });
      return new Arenas;  // never destroyed: solves may outlive static objects at exit
    }();
    return *all;
  }

  std::unique_ptr<Arena> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<Arena>();
    std::unique_ptr<Arena> arena = std::move(idle_.back());
    idle_.pop_back();
    size_ -= arena->capacity();
    return arena;
  }

  void put(std::unique_ptr<Arena> arena) {
    arena->rewind({0, 0});
    std::lock_guard<std::mutex> lock(mutex_);
    if (size_ + arena->capacity() > kMost) return;
    size_ += arena->capacity();
    idle_.push_back(std::move(arena));
  }

 private:
  static constexpr std::size_t kMost = std::size_t(64) << 20;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Arena>> idle_;
  std::size_t size_ = 0;
};

/// An arena for as long as this lives.
class Loan {
 public:
  Loan() : arena_(Arenas::idle().take()) {}
  Loan(Loan&&) = default;
  Loan& operator=(Loan&&) = default;
  ~Loan() {
    if (arena_) Arenas::idle().put(std::move(arena_));
  }
  Arena& operator*() { return *arena_; }
  Arena* operator->() { return arena_.get(); }

 private:
  std::unique_ptr<Arena> arena_;
};

}  // namespace anode
