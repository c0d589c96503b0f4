// Training a neural ODE, or a stack of them, on data in memory: many iterations in one call.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "field.h"
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
  std::vector<double> lr;  // of each member; empty if another optimiser moves the parameters
  double weight_decay, beta1, beta2, eps;
};

/// The model of a training run and its parameters. A model maps an input to a state, follows the flow of its field, and maps
/// the final state to a prediction. The parameters are the tensors of these three programs, then those that the loss
/// does not depend on. Each holds all members in turn, unless they share it.
///
/// Adam moves the parameters that have means. The gradients of those that have gradients are written there, for another
/// optimiser. The others are not trained.
template <class T>
struct Course {
  std::shared_ptr<const Method> method;
  Task task;
  std::shared_ptr<const Program> augment, field, head;
  int members;
  Loss loss;
  std::vector<T*> parameters, means, squares, gradients;
  std::vector<bool> shared;  // of each tensor of a program, whether all members share it; these are not trained
  std::vector<long> idle;    // the sizes of the parameters that the loss does not depend on
  Optimiser adam;
};

/// The records of iterations, [iterations][members].
struct Log {
  double *loss, *accuracy;
  std::int64_t *nfe, *accepted, *rejected, *nfe_backward;
};

/// Some batches of an epoch.
template <class T>
struct Batches {
  PerMember<const T> x;                  // [points][augment->dim]
  PerMember<const T> targets;            // [points][head->outputs]; null for classes
  PerMember<const std::int64_t> labels;  // [points]; null for numbers
  PerMember<const T> weights;            // [points]; null if all are equal
  PerMember<const std::int64_t> order;  // the numbers of the points
  long points, size;                    // of the epoch, of a batch
  long first, count;                    // which batches
};

/// Runs iterations, independently for each member. A member that fails keeps its parameters from before that iteration.
///
/// steps: the number of earlier iterations. frozen: the members to skip. failed_at, why: for each member the iteration
/// of this call in which it failed (batches.count if none) and the reason.
template <class T>
void train(const Course<T>&, const Batches<T>&, long steps, const std::uint8_t* frozen, int threads, const Log&,
           std::int64_t* failed_at, std::int64_t* why);

}  // namespace anode
