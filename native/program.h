// A field and its derivative as lists of operations on blocks of points; see anode/engine/program/layout.py.

#pragma once

#include <cstring>
#include <vector>

#include "elementwise.h"
#include "kernels.h"
#include "memory.h"

namespace anode {

/// Pieces of memory that operations read and write. In all but `scalar` a row has one entry per point; in the uniform
/// ones it has as many as `Width` says.
enum Space : int { kState, kKept, kScratch, kScalar, kSlope, kCotangent, kPulled, kLoose, kUniform, kUniformCotangent, kSpaces };

enum class Kind : int { unary, binary, select, sum, largest, affine, pull, points, fold };

/// The number of entries of a row: one per point. A uniform row, whose value depends on time and tensors only, has
/// fewer if all points share one time. Its entries are then equal. The entries of its cotangent are parts of a sum over
/// the points; a pullback is linear, so it can be applied to the parts.
struct Width {
  long points, uniform;
};

constexpr bool is_uniform(int space) { return space == kUniform || space == kUniformCotangent; }

/// Rows, or scalars, of a space: the first, and the distance to the next.
struct Slot {
  int space = -1;
  long first = 0, step = 0;
};

struct Instruction {
  Kind kind;
  int name;
  long rows;
  bool add;
  Slot out, derivative, inputs[3], seen;
  long outer, length, inner;  // of sums: distance of the groups, length of a group, distance within it
  int layer;
  Activation activation;
  double p, q;
};

/// An affine map. Its weights are gathered from the scalars, so that it may be any part of any tensor.
struct Map {
  int outputs, inputs;
  int skipped;                    // number of leading inputs that need no cotangent
  Slot cotangent, input;          // the rows that hold those; no space if nothing depends on it
  std::vector<int> weight, bias;  // which scalars: [outputs][inputs], [outputs]
  std::vector<int> forward, backward;  // those of the packed matrices; -1 for zero

  void pack();
};

/// A field without its tensors, or another map of points, whose results have any number of features.
struct Program {
  int dim, outputs;  // features of a point and of its result
  bool time;
  long kept, scratch, cotangents, loose, uniform, uniform_cotangents;  // rows of these spaces
  std::vector<Instruction> forward, backward;
  std::vector<Map> maps;
  std::vector<long> sizes;  // elements of the tensors, of one member
  std::vector<double> literals;

  long elements() const {
    long all = 0;
    for (long size : sizes) all += size;
    return all;
  }
  /// The sizes of what an evaluation keeps, and of the cotangents that are kept; uniform rows follow the others.
  long kept_size(Width width) const { return kept * width.points + uniform * width.uniform; }
  long cotangents_size(Width width) const {
    return cotangents * width.points + uniform_cotangents * width.uniform;
  }
};

/// The addresses of a program's tensors, or of their gradients: of all members in turn, or one shared by all.
template <class T>
struct Tensors {
  std::vector<T*> first;
  std::vector<bool> shared;

  T* of(std::size_t tensor, int member, const Program& program) const {
    return first[tensor] + (shared[tensor] ? 0 : member * program.sizes[tensor]);
  }
};

/// The accumulated gradients of one member's tensors.
template <class T>
struct Sums {
  T* scalars;                     // of tensors that single operations use, and of everything in the end
  std::vector<LayerSums<T>> maps;

  Sums(const Program& program, Arena& arena);

  /// Adds the sums to the gradients that are wanted.
  void add_to(const Tensors<T>& total, const Program& program, int member);
};

/// The result of an evaluation: the state, preceded by the time, and what the pullback needs.
template <class T>
struct Evaluation {
  T* x = nullptr;
  T* kept = nullptr;
};

/// One member's field.
template <class T>
class Network {
 public:
  Network(const Program& program, const Tensors<const T>& tensors, int member, Arena& arena);

  /// The slope at a state and time. `scratch` has program.scratch rows. `pulls`: whether it will be pulled back, which
  /// needs the derivatives of operations.
  void evaluate(const Kernels<T>& kernels, const Evaluation<T>& at, T* scratch, Width width, T* slope,
                bool pulls = true) const;

  /// Pull the cotangent of a slope, which is in the first rows of `cotangents`, back to the state.
  void pull(const Kernels<T>& kernels, const Evaluation<T>& at, T* cotangents, T* loose, Width width, T* at_state,
            const Sums<T>& sums) const;

  /// Add the gradients of the affine maps, from several evaluations that were pulled back.
  void add_gradients(const Kernels<T>& kernels, int count, const Evaluation<T>* const* at, T* const* cotangents,
                     Width width, const Sums<T>& sums) const;

 private:
  using Bases = T* const*;
  T* place(const Slot& slot, Bases bases, Width width) const;
  Operand<T> operand(const Slot& slot, Bases bases, Width width, bool spread) const;
  void run(const Kernels<T>& kernels, const Instruction& op, Bases bases, Width widths, bool pulls,
           const Sums<T>* sums) const;

  const Program& program_;
  T* scalars_;
  std::vector<Layer<T>> layers_;
};

}  // namespace anode
