#include "train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "team.h"

namespace anode {
namespace {

/// The tensors of one of the programs, among all parameters.
struct Part {
  std::shared_ptr<const Program> program;
  std::size_t first;
};

/// One member in training.
template <class T>
class Learner {
 public:
  Learner(const Course<T>& course, const Batches<T>& data, int member, int threads)
      : course_(course), data_(data), member_(member), threads_(threads) {
    for (auto [part, program] : {std::pair{&augment_, course.augment}, {&field_, course.field}, {&head_, course.head}}) {
      *part = {program, sizes_.size()};
      sizes_.insert(sizes_.end(), program->sizes.begin(), program->sizes.end());
    }
    sizes_.insert(sizes_.end(), course.idle.begin(), course.idle.end());
    for (std::size_t i = 0; i < sizes_.size(); ++i) gradients_.emplace_back(is_trained(i) ? sizes_[i] : 0);
  }

  /// One iteration; the reason if it fails, else 0.
  int iterate(const std::int64_t* points, long rows, long step, const Log& log, long at) {
    gather(points, rows);
    PointMap augment(*this, augment_, rows), head(*this, head_, rows);
    augment.evaluate(input_, state_);
    Solve<T> solve(course_.method, course_.task, course_.field, parameters(field_), {1, rows, rows}, kernels<T>(rows), true,
                   threads_);
    double t;
    std::int64_t status, nfe, accepted, rejected;
    features_.resize(state_.size());
    last_.resize(state_.size());
    const auto never = [] { return false; };  // Python looks for a Ctrl-C between stretches of iterations
    solve.run(state_.data(), {features_.data()}, last_.data(), {&t, &status, &nfe, &accepted, &rejected}, never);
    log.nfe[at] = nfe;
    log.accepted[at] = accepted;
    log.rejected[at] = rejected;
    if (status != kSuccess) return int(status);
    head.evaluate(features_, prediction_);
    log.loss[at] = lose(points, rows, log.accuracy ? &log.accuracy[at] : nullptr);
    if (!std::isfinite(T(log.loss[at]))) return kLoss;
    for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), T(0));
    head.pull(prediction_, at_features_);
    log.nfe_backward[at] = solve.backward({at_features_.data()}, nullptr, state_.data(), gradients(field_), never);
    if (is_trained(augment_)) augment.pull(state_, input_);
    if (!finite()) return kGradient;
    hand_out();
    if (!course_.adam.lr.empty()) move(step);
    return 0;
  }

 private:
  /// A program before or after the flow, on one batch.
  class PointMap {
   public:
    PointMap(Learner& learner, const Part& part, long rows)
        : learner_(learner), part_(part), rows_(rows),
          field_(part.program, learner.parameters(part), 1, rows, kernels<T>(rows)), kept_(field_.kept_size(1)) {}

    void evaluate(const std::vector<T>& x, std::vector<T>& result) {
      const T now = 0;
      result.resize(rows_ * part_.program->outputs);
      field_.evaluate(&now, 1, x.data(), result.data(), kept_.data(), learner_.threads_);
    }

    /// Adds the gradients of its tensors.
    void pull(const std::vector<T>& cotangent, std::vector<T>& at_x) {
      at_x.resize(rows_ * part_.program->dim);
      field_.pull(1, kept_.data(), cotangent.data(), at_x.data(), learner_.threads_);
      field_.take(learner_.gradients(part_));
    }

   private:
    Learner& learner_;
    const Part& part_;
    long rows_;
    Field<T> field_;
    std::vector<T> kept_;
  };

  bool is_trained(std::size_t i) const { return course_.means[i] || course_.gradients[i]; }
  bool is_trained(const Part& part) const {
    for (std::size_t i = 0; i < part.program->sizes.size(); ++i)
      if (is_trained(part.first + i)) return true;
    return false;
  }
  bool is_shared(std::size_t i) const { return i < course_.shared.size() && course_.shared[i]; }
  T* parameter(std::size_t i) const { return course_.parameters[i] + (is_shared(i) ? 0 : member_ * sizes_[i]); }

  template <class P, class At>
  Tensors<P> tensors(const Part& part, At at) const {
    Tensors<P> found;
    for (std::size_t i = 0; i < part.program->sizes.size(); ++i) {
      found.first.push_back(at(part.first + i));
      found.shared.push_back(true);  // as these are of one member
    }
    return found;
  }
  Tensors<const T> parameters(const Part& part) const {
    return tensors<const T>(part, [this](std::size_t i) { return parameter(i); });
  }
  Tensors<T> gradients(const Part& part) {
    return tensors<T>(part, [this](std::size_t i) { return is_trained(i) ? gradients_[i].data() : nullptr; });
  }

  /// The inputs of a batch.
  void gather(const std::int64_t* points, long rows) {
    const long inputs = course_.augment->dim;
    const T* x = data_.x.of(member_);
    input_.resize(rows * inputs);
    for (long b = 0; b < rows; ++b) std::copy_n(x + points[b] * inputs, inputs, &input_[b * inputs]);
  }

  /// The loss of a batch, and its cotangent in place of the prediction.
  double lose(const std::int64_t* points, long rows, double* accuracy) {
    const long outputs = course_.head->outputs;
    const bool classes = course_.loss == Loss::cross_entropy;
    const T scale = T(1) / T(classes ? rows : rows * outputs);
    double total = 0;
    long right = 0;
    for (long b = 0; b < rows; ++b) {
      T* row = &prediction_[b * outputs];
      const T weight = data_.weights.first ? data_.weights.of(member_)[points[b]] : T(1);
      if (classes) {
        const std::int64_t label = data_.labels.of(member_)[points[b]];
        if (label < 0 || label >= outputs) return std::numeric_limits<double>::quiet_NaN();  // changed since the checks
        right += std::max_element(row, row + outputs) - row == label;
        total += double(weight) * softmax(row, outputs, label);
        for (long o = 0; o < outputs; ++o) row[o] *= weight * scale;
        continue;
      }
      const T* target = data_.targets.of(member_) + points[b] * outputs;
      for (long o = 0; o < outputs; ++o) {
        const T off = row[o] - target[o], size = std::fabs(off);
        const bool square = course_.loss == Loss::mse;
        total += double(weight) * double(square ? off * off : size < 1 ? T(0.5) * off * off : size - T(0.5));
        row[o] = weight * scale * (square ? 2 * off : size < 1 ? off : std::copysign(T(1), off));
      }
    }
    if (accuracy) *accuracy = double(right) / double(rows);
    return total / double(classes ? rows : rows * outputs);
  }

  /// Minus the logarithm of a class's probability; in place of the logits, the derivative of that.
  static double softmax(T* row, long outputs, std::int64_t label) {
    const T most = *std::max_element(row, row + outputs);
    const T own = row[label] - most;
    T sum = 0;
    for (long o = 0; o < outputs; ++o) sum += row[o] = std::exp(row[o] - most);
    for (long o = 0; o < outputs; ++o) row[o] /= sum;
    row[label] -= 1;
    return double(std::log(sum)) - double(own);
  }

  bool finite() const {
    T sum = 0;
    for (const auto& gradient : gradients_)
      for (T g : gradient) sum += g * T(0);
    return sum == 0;
  }

  void hand_out() const {
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      if (course_.gradients[i])
        std::copy_n(gradients_[i].data(), sizes_[i], course_.gradients[i] + member_ * sizes_[i]);
  }

  /// Adam, as anode.train.optimizers has it.
  void move(long step) {
    const Optimiser& adam = course_.adam;
    const T rate = T(adam.lr[member_] / (1 - std::pow(adam.beta1, double(step))));
    const T unbias = T(1 / std::sqrt(1 - std::pow(adam.beta2, double(step))));
    const T blend = T(1 - adam.beta1), keep = T(adam.beta2), fresh = T(1 - adam.beta2), eps = T(adam.eps);
    const T decay = T(adam.weight_decay);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!course_.means[i]) continue;
      T *p = parameter(i), *mean = course_.means[i] + member_ * sizes_[i],
        *square = course_.squares[i] + member_ * sizes_[i];
      const T* gradient = gradients_[i].data();
      for (long j = 0; j < sizes_[i]; ++j) {
        const T g = gradient[j] + decay * p[j];
        mean[j] += blend * (g - mean[j]);
        square[j] = keep * square[j] + fresh * g * g;
        p[j] -= mean[j] / (std::sqrt(square[j]) * unbias + eps) * rate;
      }
    }
  }

  const Course<T>& course_;
  const Batches<T>& data_;
  int member_, threads_;
  Part augment_, field_, head_;
  std::vector<long> sizes_;  // of all parameters
  std::vector<std::vector<T>> gradients_;
  std::vector<T> input_, state_, features_, last_, prediction_, at_features_;
};

/// The record of an iteration that changes nothing.
void clear(const Log& log, int members, long iteration, int member) {
  const long at = iteration * members + member;
  log.loss[at] = std::numeric_limits<double>::quiet_NaN();
  if (log.accuracy) log.accuracy[at] = std::numeric_limits<double>::quiet_NaN();
  log.nfe[at] = log.accepted[at] = log.rejected[at] = log.nfe_backward[at] = 0;
}

}  // namespace

template <class T>
void train(const Course<T>& course, const Batches<T>& batches, long steps, const std::uint8_t* frozen, int threads,
           const Log& log, std::int64_t* failed_at, std::int64_t* why) {
  share(course.members, threads, [&](int member) {
    failed_at[member] = batches.count;
    why[member] = 0;
    for (long i = 0; i < batches.count; ++i) clear(log, course.members, i, member);
    if (frozen[member]) return;
    Learner<T> learner(course, batches, member, course.members == 1 ? threads : 1);
    for (long i = 0; i < batches.count; ++i) {
      const long begin = (batches.first + i) * batches.size, end = std::min(begin + batches.size, batches.points);
      const int failure = learner.iterate(batches.order.of(member) + begin, end - begin, steps + i + 1, log,
                                          i * course.members + member);
      if (!failure) continue;
      clear(log, course.members, i, member);
      failed_at[member] = i;
      why[member] = failure;
      return;
    }
  });
}

template void train<float>(const Course<float>&, const Batches<float>&, long, const std::uint8_t*, int, const Log&,
                           std::int64_t*, std::int64_t*);
template void train<double>(const Course<double>&, const Batches<double>&, long, const std::uint8_t*, int, const Log&,
                            std::int64_t*, std::int64_t*);

}  // namespace anode
