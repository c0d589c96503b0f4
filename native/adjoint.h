// The adjoint ODE of a field, which anode/ode/adjoint.py describes, with one step size.
//
// Its state is a list of parts: the components of y, those of the cotangent of y, and the gradients of tensors. The
// gradients are not rows of points, so that Solve cannot take them: their slopes are sums over all points.

#pragma once

#include <functional>
#include <vector>

#include "blocks.h"
#include "field.h"
#include "kernels.h"
#include "memory.h"
#include "method.h"

namespace anode {

/// The parts of an adjoint state.
struct Parts {
  std::vector<int> components;  // features of each component of y
  std::vector<long> sizes;      // elements of each part
  int normed;                   // how many of the parts count for the error, from the first on
  std::vector<int> gradients;   // for each tensor of the field, the part with its gradient; 0 for none
  std::vector<bool> shared;     // for each tensor, whether all members share it
};

template <class T>
class Adjoint {
 public:
  Adjoint(const Method& method, const Task& task, const Parts& parts, Field<T>& field, const Kernels<T>& kernels,
          int threads);

  /// Solves from a state, whose parts follow each other, and overwrites it with that at the end of the span or, if that
  /// is not reached, of the last step. Before every step, it asks whether to stop.
  Clock run(T* state, const std::function<bool()>& is_stopped);

 private:
  void evaluate(double t, const T* y, T* slope);
  void to_rows(const T* y, std::size_t first, T* rows) const;
  void from_rows(const T* rows, std::size_t first, T* y) const;
  void move(const Sum<T>& slopes, double h);
  double norm(const Sum<T>& slopes, const T* y1) const;
  bool is_finite(const T* y) const;
  void first_step(Clock& clock);
  void attempt(Clock& clock);
  void come_back(Clock& clock);

  const Method& method_;
  const Task& task_;
  const Parts& parts_;
  Field<T>& field_;
  const Kernels<T>& kernels_;
  const int threads_;
  long dim_ = 0, points_, size_ = 0;  // size_: of all parts
  std::vector<long> starts_;          // of the parts; each takes whole vectors, filled up with zeros
  Loan arena_;
  std::vector<T*> slopes_;
  T *y_, *y1_, *h_, *squares_, *kept_, *at_, *slope_, *cotangent_;  // the last three: rows of points
};

}  // namespace anode
