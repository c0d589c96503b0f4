// Training a neural ODE, or a stack of them, on data in memory: many iterations in one call.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "solve.h"

namespace anode {

enum class Loss : int { huber, mse, cross_entropy };

/// Why an iteration failed, in addition to the statuses of solves.
enum Failure : int { kLoss = 5, kGradient = 6 };

/// The address of the first member's data, and the stride between members; 0 if all share it.
template <class T>
struct PerMember {
  T* first;
  long stride;
  T* of(int member) const { return first + member * stride; }
};

struct Optimiser {
  std::vector<double> lr;  // of each member
  double weight_decay, beta1, beta2, eps;
};

/// The data and parameters of a training run. The parameters are the tensors of the field, then weight and bias of the
/// linear layer after it, then those that the loss does not depend on. Each holds all members in turn, unless they
/// share it. Parameters without means are not trained.
template <class T>
struct Course {
  std::shared_ptr<const Method> method;
  Task task;
  std::shared_ptr<const Program> program;
  int members, inputs, outputs;
  Loss loss;
  PerMember<const T> x;                 // [points][inputs]
  PerMember<const T> targets;           // [points][outputs]; null for classes
  PerMember<const std::int64_t> labels;  // [points]; null for numbers
  PerMember<const T> weights;           // [points]; null if all are equal
  std::vector<T*> parameters, means, squares;
  std::vector<bool> shared;  // of each tensor of the field, whether all members share it; these are not trained
  std::vector<long> idle;    // the sizes of the parameters that the loss does not depend on
  Optimiser adam;
};

/// The records of iterations, [iterations][members].
struct Log {
  double *loss, *accuracy;
  std::int64_t *nfe, *accepted, *rejected, *nfe_backward;
};

/// Some batches of an epoch.
struct Batches {
  PerMember<const std::int64_t> order;  // the numbers of the points
  long points, size;                    // of the epoch, of a batch
  long first, count;                    // which batches
};

/// Runs iterations, independently for each member. A member that fails keeps its parameters from before that iteration.
///
/// steps: the number of earlier iterations. frozen: the members to skip. failed_at, why: for each member the iteration
/// of this call in which it failed (batches.count if none) and the reason.
template <class T>
void train(const Course<T>&, const Batches&, long steps, const std::uint8_t* frozen, int threads, const Log&,
           std::int64_t* failed_at, std::int64_t* why);

/// Whether the program computes these slopes at time 0; the rows of all members follow each other.
template <class T>
bool agrees(const Course<T>&, const T* state, const T* slope, long rows, double tolerance);

}  // namespace anode
