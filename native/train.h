// Training a neural ODE, or a stack of them, on data in memory: many iterations in one call.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "solve.h"

namespace anode {

enum class Loss : int { huber, mse, cross_entropy };

/// Why an iteration failed, beyond the statuses of solves.
enum Failure : int { kLoss = 5, kGradient = 6 };

/// Where something of every member lies; a stride of zero if all share it.
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

/// What a training run works on. The parameters are the tensors of the field, then weight and bias of the linear map
/// behind it, then those that nothing depends on, each with all members one after the other unless they share it.
/// What has no means is not trained.
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
  PerMember<const T> weights;           // [points]; null if all points count alike
  std::vector<T*> parameters, means, squares;
  std::vector<bool> shared;  // of each tensor of the field, whether it is one for all members; such are not trained
  std::vector<long> idle;    // the sizes of the parameters that nothing depends on
  Optimiser adam;
};

/// What iterations leave behind, [iterations][members].
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

/// Runs iterations, each member on its own. A member that fails stays as it was before that iteration.
///
/// steps: how many iterations were made before. frozen: members that are to be left alone. failed_at, why: for each
/// member the iteration, counted from these, in which it failed (batches.count if in none) and the reason.
template <class T>
void train(const Course<T>&, const Batches&, long steps, const std::uint8_t* frozen, int threads, const Log&,
           std::int64_t* failed_at, std::int64_t* why);

/// Whether slopes at time 0, those of one member's rows after those of another, are what the program computes.
template <class T>
bool agrees(const Course<T>&, const T* state, const T* slope, long rows, double tolerance);

}  // namespace anode
