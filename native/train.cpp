#include "train.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "team.h"

namespace anode {
namespace {

/// One member in training.
template <class T>
class Learner {
 public:
  Learner(const Course<T>& course, int member, int threads)
      : course_(course), member_(member), threads_(threads), dim_(course.program->dim), sizes_(course.program->sizes) {
    sizes_.push_back(long(dim_) * course.outputs);
    sizes_.push_back(course.outputs);
    sizes_.insert(sizes_.end(), course.idle.begin(), course.idle.end());
    for (std::size_t i = 0; i < sizes_.size(); ++i) gradients_.emplace_back(is_trained(i) ? sizes_[i] : 0);
  }

  /// One iteration; the reason if it fails, else 0.
  int iterate(const std::int64_t* points, long rows, long step, const Log& log, long at) {
    gather(points, rows);
    Solve<T> solve(course_.method, course_.task, course_.program, field_parameters(), {1, rows, rows}, kernels<T>(),
                   true, threads_);
    double t;
    std::int64_t status, nfe, accepted, rejected;
    features_.resize(rows * dim_);
    last_.resize(rows * dim_);
    const auto never = [] { return false; };  // Python looks for a Ctrl-C between stretches of iterations
    solve.run(state_.data(), {features_.data()}, last_.data(), {&t, &status, &nfe, &accepted, &rejected}, never);
    log.nfe[at] = nfe;
    log.accepted[at] = accepted;
    log.rejected[at] = rejected;
    if (status != kSuccess) return int(status);
    predict(rows);
    log.loss[at] = lose(points, rows, log.accuracy ? &log.accuracy[at] : nullptr);
    if (!std::isfinite(T(log.loss[at]))) return kLoss;
    for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), T(0));
    pull_head(rows);
    log.nfe_backward[at] = solve.backward({at_features_.data()}, nullptr, last_.data(), field_gradients(), never);
    if (!finite()) return kGradient;
    move(step);
    return 0;
  }

 private:
  bool is_trained(std::size_t i) const { return course_.means[i] != nullptr; }
  bool is_shared(std::size_t i) const { return i < course_.shared.size() && course_.shared[i]; }
  T* parameter(std::size_t i) const { return course_.parameters[i] + (is_shared(i) ? 0 : member_ * sizes_[i]); }
  std::size_t head() const { return course_.program->sizes.size(); }  // of the linear map; its bias follows

  template <class P, class At>
  Tensors<P> field(At at) const {
    Tensors<P> found;
    for (std::size_t i = 0; i < course_.program->sizes.size(); ++i) {
      found.first.push_back(at(i));
      found.shared.push_back(true);  // as these are of one member
    }
    return found;
  }
  Tensors<const T> field_parameters() const {
    return field<const T>([this](std::size_t i) { return parameter(i); });
  }
  Tensors<T> field_gradients() {
    return field<T>([this](std::size_t i) { return is_trained(i) ? gradients_[i].data() : nullptr; });
  }

  /// The augmented inputs of a batch.
  void gather(const std::int64_t* points, long rows) {
    const long inputs = course_.inputs;
    const T* x = course_.x.of(member_);
    state_.assign(rows * dim_, T(0));
    for (long b = 0; b < rows; ++b) std::copy_n(x + points[b] * inputs, inputs, &state_[b * dim_]);
  }

  /// The linear map behind the flow. Loops are ordered such that the innermost runs over what is contiguous.
  void predict(long rows) {
    const long outputs = course_.outputs;
    const T *weight = parameter(head()), *bias = parameter(head() + 1);
    prediction_.resize(rows * outputs);
    for (long b = 0; b < rows; ++b)
      for (long o = 0; o < outputs; ++o) {
        T sum = bias[o];
        for (long i = 0; i < dim_; ++i) sum += weight[o * dim_ + i] * features_[b * dim_ + i];
        prediction_[b * outputs + o] = sum;
      }
  }

  /// The loss of a batch, and its cotangent in place of the prediction.
  double lose(const std::int64_t* points, long rows, double* accuracy) {
    const long outputs = course_.outputs;
    const bool classes = course_.loss == Loss::cross_entropy;
    const T scale = T(1) / T(classes ? rows : rows * outputs);
    double total = 0;
    long right = 0;
    for (long b = 0; b < rows; ++b) {
      T* row = &prediction_[b * outputs];
      const T weight = course_.weights.first ? course_.weights.of(member_)[points[b]] : T(1);
      if (classes) {
        const std::int64_t label = course_.labels.of(member_)[points[b]];
        right += std::max_element(row, row + outputs) - row == label;
        total += double(weight) * softmax(row, outputs, label);
        for (long o = 0; o < outputs; ++o) row[o] *= weight * scale;
        continue;
      }
      const T* target = course_.targets.of(member_) + points[b] * outputs;
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

  void pull_head(long rows) {
    const long outputs = course_.outputs;
    const T* weight = parameter(head());
    T *at_weight = gradients_[head()].data(), *at_bias = gradients_[head() + 1].data();
    at_features_.assign(rows * dim_, T(0));
    for (long b = 0; b < rows; ++b)
      for (long o = 0; o < outputs; ++o) {
        const T g = prediction_[b * outputs + o];
        at_bias[o] += g;
        for (long i = 0; i < dim_; ++i) {
          at_weight[o * dim_ + i] += g * features_[b * dim_ + i];
          at_features_[b * dim_ + i] += g * weight[o * dim_ + i];
        }
      }
  }

  bool finite() const {
    T sum = 0;
    for (const auto& gradient : gradients_)
      for (T g : gradient) sum += g * T(0);
    return sum == 0;
  }

  /// Adam, as anode.train.adam has it.
  void move(long step) {
    const Optimiser& adam = course_.adam;
    const T rate = T(adam.lr[member_] / (1 - std::pow(adam.beta1, double(step))));
    const T unbias = T(1 / std::sqrt(1 - std::pow(adam.beta2, double(step))));
    const T blend = T(1 - adam.beta1), keep = T(adam.beta2), fresh = T(1 - adam.beta2), eps = T(adam.eps);
    const T decay = T(adam.weight_decay);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!is_trained(i)) continue;
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
  int member_, threads_;
  long dim_;
  std::vector<long> sizes_;
  std::vector<std::vector<T>> gradients_;
  std::vector<T> state_, features_, last_, prediction_, at_features_;
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
void train(const Course<T>& course, const Batches& batches, long steps, const std::uint8_t* frozen, int threads,
           const Log& log, std::int64_t* failed_at, std::int64_t* why) {
  share(course.members, threads, [&](int member) {
    failed_at[member] = batches.count;
    why[member] = 0;
    for (long i = 0; i < batches.count; ++i) clear(log, course.members, i, member);
    if (frozen[member]) return;
    Learner<T> learner(course, member, course.members == 1 ? threads : 1);
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

template <class T>
bool agrees(const Course<T>& course, const T* state, const T* slope, long rows, double tolerance) {
  Tensors<const T> tensors;
  for (std::size_t i = 0; i < course.program->sizes.size(); ++i) {
    tensors.first.push_back(course.parameters[i]);
    tensors.shared.push_back(course.shared[i]);
  }
  const long all = rows * course.members;
  Solve<T> solve(course.method, course.task, course.program, tensors, {course.members, all, rows}, kernels<T>(), false,
                 1);
  return solve.agrees(state, slope, tolerance);
}

template bool agrees<float>(const Course<float>&, const float*, const float*, long, double);
template bool agrees<double>(const Course<double>&, const double*, const double*, long, double);
template void train<float>(const Course<float>&, const Batches&, long, const std::uint8_t*, int, const Log&,
                           std::int64_t*, std::int64_t*);
template void train<double>(const Course<double>&, const Batches&, long, const std::uint8_t*, int, const Log&,
                            std::int64_t*, std::int64_t*);

}  // namespace anode
