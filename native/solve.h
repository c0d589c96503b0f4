// One solve of the ODE of a program, or of a stack of them, and its exact gradient.
//
// Points are split into blocks. A cohort is one or several blocks that take their steps together: all points of a group
// with one step size, or a block of points with one step size per point. Cohorts are independent of each other.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "memory.h"
#include "method.h"
#include "program.h"

namespace anode {

/// How the rows of the state belong to members and groups.
struct Extent {
  int members;
  long rows;        // of all members
  long group_rows;  // of one group
};

/// The results per group, in arrays of the caller.
struct Groups {
  double* t;
  std::int64_t *status, *nfe, *accepted, *rejected;
};

/// An output inside a step.
struct Emission {
  int position;                  // among the wanted times
  bool at_end;                   // whether it is the state at the end of the step
  std::vector<double> fraction;  // of each clock, where in the step; NaN if not in this one
};

/// A step that at least one clock of a cohort accepted.
struct Step {
  std::vector<double> t, t1;  // of each clock; equal for a clock that did not move
  std::vector<Emission> emissions;
};

template <class T>
struct Block {
  int member, strand;
  long first, rows, width;
  long uniform_width;        // of rows that hold the same for all points with one time
  std::vector<long> points;  // the rows of the state, if they are not `rows` ones from `first` on

  Width widths() const { return {width, uniform_width}; }
  long point(long b) const { return points.empty() ? first + b : points[b]; }

  // The step being tried.
  std::vector<T*> slopes;                  // and that at the end
  std::vector<Evaluation<T>> evaluations;  // of the slopes and that at the end
  T *h, *squares, *scratch;  // squares: of each component of the state

  // The steps that were kept.
  struct Kept {
    T* y;
    std::vector<Evaluation<T>> evaluations;  // empty if they have to be computed again
    bool pieced;                             // whether the first slope was put together from two evaluations
  };
  std::vector<Kept> kept;
  bool pieced = false;

  T* adjoint = nullptr;  // the cotangent of the state, during the backward pass
};

template <class T>
struct Cohort {
  std::vector<Block<T>> blocks;
  std::vector<Clock> clocks;  // one, or one for each row of the only block
  long first_group;
  bool pointwise;
  std::vector<Step> steps;
  std::size_t pending = 0;  // the first wanted time that has not been passed; for a single clock
  long calls = 0;
};

/// Blocks of one member that are processed one after the other. Sums belong to a strand, so that they do not depend on
/// the number of threads.
template <class T>
struct Strand {
  int member;
  Loan arena;
  T* scratch;                // for an evaluation
  T* kept;                   // of an evaluation that need not be remembered
  std::vector<int> cohorts;  // whose blocks these are; none if the blocks of a single cohort have several strands

  Strand(int member, const Program& program, long width)
      : member(member), scratch(arena->take<T>(program.scratch * width)),
        kept(arena->take<T>(program.kept_size({width, width}))) {}
};

template <class T>
class Solve {
 public:
  /// keep: whether there will be a backward pass.
  Solve(std::shared_ptr<const Method> method, Task task, std::shared_ptr<const Program> program,
        const Tensors<const T>& tensors, const Extent& extent, const Kernels<T>& kernels, bool keep, int threads);

  /// Solves from y0, [rows][dim]. Writes the states at the wanted times (NaN if they were not reached), the state at
  /// the end of the last step, and the results per group. Returns the number of evaluations of the field. Before every
  /// step, on any thread, it asks whether to stop; if so, the outputs may be incomplete.
  long run(const T* y0, const std::vector<T*>& outputs, T* last, const Groups& groups,
           const std::function<bool()>& is_stopped);

  /// Whether the field's slope at the start equals this one, up to a fraction of the largest slope.
  bool agrees(const T* y0, const T* slope, double tolerance);

  /// Computes the gradient of y0, and adds the gradients of the tensors to the given arrays, from the cotangents of the
  /// outputs and of the last state, each null for zero. Returns the number of repeated evaluations. Asks before every
  /// step whether to stop, like run.
  long backward(const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0, const Tensors<T>& gradients,
                const std::function<bool()>& is_stopped);

 private:
  void cut();
  void add_cohorts(int member, bool pointwise);
  void in_strands(int member, long count, const std::function<void(long)>& piece);
  Block<T> block(const Piece&, int member, bool pointwise) const;
  void each(Cohort<T>&, const std::function<void(Block<T>&)>&);
  void all(const std::function<void(Cohort<T>&)>&);

  // Forward.
  void solve(Cohort<T>&);
  void prepare(Block<T>&);
  void first_slope(Cohort<T>&);
  void give_up_without_slope(Cohort<T>&);
  void first_step(Cohort<T>&);
  std::vector<double> norms(Cohort<T>&, const std::function<Sum<T>(const Block<T>&)>& what);
  void attempt(Cohort<T>&);
  void attempt(const Cohort<T>&, Block<T>&);
  bool judge(Cohort<T>&);
  bool advance(Cohort<T>&);
  void end_slope(Cohort<T>&);
  void move_on(Cohort<T>&, bool has_end_slope);
  std::vector<Emission> emissions(Cohort<T>&);
  void emit(const Cohort<T>&, Block<T>&, const Emission&);
  void finish(Cohort<T>&);
  void write_end(const Cohort<T>&, const Block<T>&, long b);
  void write_result(const Clock&, long group);
  void shrink(Cohort<T>&);
  Evaluation<T> room(Block<T>&);
  void evaluate(Block<T>&, int slope);
  void set_squares(Block<T>&, const Sum<T>&, const T* y, const T* y1);
  void mark(const T* x, Block<T>&) const;
  double root_mean_square(const Cohort<T>&, int clock) const;
  void set_times(const Cohort<T>&, Block<T>&, int slope, double c) const;
  void set_sizes(const Cohort<T>&, Block<T>&) const;

  // Backward.
  struct Workspace;
  struct BackStep;
  long back(Cohort<T>&, const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0, std::vector<Sums<T>>&);
  void back_over(const Step&, Block<T>&, std::size_t, const std::vector<const T*>& of_outputs, Workspace&, Sums<T>&);

  std::shared_ptr<const Method> method_;
  Task task_;
  std::shared_ptr<const Program> program_;
  long dim_;
  Extent extent_;
  const Kernels<T>& kernels_;
  bool keep_;
  int threads_;
  long steps_kept_ = 0;  // number of steps whose evaluations are kept
  Loan arena_;
  std::vector<Network<T>> networks_;
  std::vector<Strand<T>> strands_;
  std::vector<Cohort<T>> cohorts_;
  bool together_;  // whether there is one cohort, whose blocks belong to several strands

  // Of the current run.
  std::function<bool()> is_stopped_;
  const T* y0_ = nullptr;
  std::vector<T*> outputs_;
  T* last_ = nullptr;
  Groups groups_{};
};

}  // namespace anode
