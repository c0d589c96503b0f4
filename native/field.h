// A field or another map of points, or a stack of them: evaluations and pullbacks one by one.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "program.h"

namespace anode {

template <class T>
class Field {
 public:
  /// rows: of all members.
  Field(std::shared_ptr<const Program> program, const Tensors<const T>& tensors, int members, long rows,
        const Kernels<T>& kernels);

  /// The number of values that an evaluation with this number of times keeps for its pullback.
  long kept_size(long times) const;

  /// Evaluates the slope, [rows][outputs], at y, [rows][dim], at one time, or at one time for each of `times` parts of
  /// the rows. `kept` is null if it will not be pulled back.
  void evaluate(const T* t, long times, const T* y, T* slope, T* kept, int threads);

  /// Pulls a cotangent of the slope back to y. The gradients of the tensors accumulate.
  void pull(long times, T* kept, const T* cotangent, T* at_y, int threads);

  /// Adds the accumulated gradients of the tensors to the given arrays, and resets them.
  void take(const Tensors<T>& gradients);

 private:
  struct Block {
    int member, strand;
    long first, rows, width;
    long at[2];  // where its kept values begin, if its points share one time and if they do not
  };

  /// Blocks that are processed one after the other, and memory for one of them. Sums belong to a strand, so that they
  /// do not depend on the number of threads.
  struct Strand {
    int member;
    std::size_t first, last;  // of the blocks
    Loan arena;
    T *kept, *scratch, *result, *cotangents, *loose;
    Arena::Mark mark;
  };

  bool differ(long times) const;
  Width widths(const Block& block, long times) const;
  Evaluation<T> evaluation(const Block& block, long times, T* kept) const;
  void each(int threads, const std::function<void(const Block&, Strand&)>& piece);
  void store(const Block& block, const T* from, long features, T* rows) const;

  std::shared_ptr<const Program> program_;
  int members_;
  long rows_;
  const Kernels<T>& kernels_;
  Loan arena_;
  std::vector<Network<T>> networks_;
  std::vector<Block> blocks_;
  std::vector<Strand> strands_;
  long sizes_[2] = {0, 0};  // of all that is kept, as in Block
  std::vector<Sums<T>> sums_;  // one for each strand, once something was pulled back
};

}  // namespace anode
