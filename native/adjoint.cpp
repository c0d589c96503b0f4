#include "adjoint.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace anode {

template <class T>
Adjoint<T>::Adjoint(const Method& method, const Task& task, const Parts& parts, Field<T>& field,
                    const Kernels<T>& kernels, int threads)
    : method_(method), task_(task), parts_(parts), field_(field), kernels_(kernels), threads_(threads) {
  for (int features : parts.components) dim_ += features;
  points_ = parts.sizes.front() / parts.components.front();
  for (long size : parts.sizes) {
    starts_.push_back(size_);
    size_ += (size + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  }
  const auto take = [this](long size) {
    T* const place = arena_->take<T>(size);
    std::fill_n(place, size, T(0));
    return place;
  };
  for (int i = 0; i <= method.slopes; ++i) slopes_.push_back(take(size_));
  for (T** state : {&y_, &y1_}) *state = take(size_);
  for (T** vector : {&h_, &squares_}) *vector = take(kernels.lanes);
  for (T** rows : {&at_, &slope_, &cotangent_}) *rows = take(points_ * dim_);
  kept_ = take(field.kept_size(1));
}

template <class T>
Clock Adjoint<T>::run(T* state, const std::function<bool()>& is_stopped) {
  const T* from = state;
  for (std::size_t i = 0; i < starts_.size(); from += parts_.sizes[i++])
    std::copy_n(from, parts_.sizes[i], y_ + starts_[i]);
  Clock clock(task_);
  bool has_slope = false;
  while (clock.active && !is_stopped()) {
    if (!has_slope) {
      evaluate(clock.from = clock.t, y_, slopes_[0]);
      ++clock.nfe;
      has_slope = true;
      if (task_.knots.empty() && !is_finite(slopes_[0])) clock.stop(kNonFinite);
      continue;
    }
    if (task_.knots.empty() && std::isnan(clock.h)) first_step(clock);
    clock.propose(task_);
    if (!clock.active) break;
    attempt(clock);
    if (!clock.kept) continue;
    if (!clock.active && clock.t1 != task_.times.back()) come_back(clock);
    std::swap(y_, y1_);
    std::swap(slopes_.front(), slopes_.back());
    has_slope = method_.fsal;
  }
  for (std::size_t i = 0; i < starts_.size(); ++i) state = std::copy_n(y_ + starts_[i], parts_.sizes[i], state);
  return clock;
}

template <class T>
void Adjoint<T>::evaluate(double t, const T* y, T* slope) {
  const std::size_t adjoint = parts_.components.size(), first_gradient = 2 * adjoint;
  const T time = T(t);
  to_rows(y, 0, at_);
  field_.evaluate(&time, 1, at_, slope_, kept_, threads_);
  from_rows(slope_, 0, slope);
  to_rows(y, adjoint, cotangent_);
  for (long i = 0; i < points_ * dim_; ++i) cotangent_[i] = -cotangent_[i];
  field_.pull(1, kept_, cotangent_, slope_, threads_);
  from_rows(slope_, adjoint, slope);
  if (first_gradient < starts_.size()) std::fill(slope + starts_[first_gradient], slope + size_, T(0));
  Tensors<T> gradients{{}, parts_.shared};
  for (int part : parts_.gradients) gradients.first.push_back(part ? slope + starts_[part] : nullptr);
  field_.take(gradients);
}

/// Between the components of y or its cotangent, whose first part is given, and rows of points.
template <class T>
void Adjoint<T>::to_rows(const T* y, std::size_t first, T* rows) const {
  for (int features : parts_.components) {
    const T* const from = y + starts_[first++];
    for (long b = 0; b < points_; ++b) std::copy_n(from + b * features, features, rows + b * dim_);
    rows += features;
  }
}

template <class T>
void Adjoint<T>::from_rows(const T* rows, std::size_t first, T* y) const {
  for (int features : parts_.components) {
    T* const to = y + starts_[first++];
    for (long b = 0; b < points_; ++b) std::copy_n(rows + b * dim_, features, to + b * features);
    rows += features;
  }
}

/// y1 = y + h times a sum of slopes.
template <class T>
void Adjoint<T>::move(const Sum<T>& slopes, double h) {
  std::fill_n(h_, kernels_.lanes, T(h));
  kernels_.combine(slopes.count, slopes.weights, slopes.parts, y_, h_, size_ / kernels_.lanes, kernels_.lanes, y1_);
}

/// The largest root mean square, over the parts that count, of a sum that is scaled as errors are; NaN if one is.
template <class T>
double Adjoint<T>::norm(const Sum<T>& sum, const T* y1) const {
  const T rtol = T(task_.rtol), atol = T(task_.atol);
  const long lanes = kernels_.lanes;
  double largest = 0;
  for (int p = 0; p < parts_.normed; ++p) {
    const long start = starts_[p], whole = parts_.sizes[p] / lanes, end = start + parts_.sizes[p];
    Sum<T> part;
    for (int i = 0; i < sum.count; ++i) part.add(sum.weights[i], sum.parts[i] + start);
    kernels_.squares(part.count, part.weights, part.parts, y_ + start, y1 + start, rtol, atol, whole, lanes, squares_);
    double squares = 0;
    for (long b = 0; b < lanes; ++b) squares += double(squares_[b]);
    for (long i = start + whole * lanes; i < end; ++i) {  // what does not fill a vector
      T error = 0;
      for (int k = 0; k < sum.count; ++k) error += sum.weights[k] * sum.parts[k][i];
      const T scale = std::max(std::fabs(y1[i]), std::fabs(y_[i])) * rtol + atol;  // NaN if y1 is
      error = error / scale + (scale - scale);  // NaN where the state overflowed
      squares += double(T(error * error));
    }
    const double size = parts_.sizes[p] ? std::sqrt(squares / double(parts_.sizes[p])) : 0;
    if (std::isnan(size)) return size;
    largest = std::max(largest, size);
  }
  return largest;
}

template <class T>
bool Adjoint<T>::is_finite(const T* y) const {
  T zero = 0;
  for (long i = 0; i < size_; ++i) zero += y[i] * T(0);
  return zero == 0;
}

template <class T>
void Adjoint<T>::first_step(Clock& clock) {
  const Sum<T> slope = Sum<T>().add(1.0, slopes_[0]);
  const double speed = norm(slope, y_);
  clock.probe(norm(Sum<T>().add(1.0, y_), y_), speed, task_);
  move(slope, clock.t1 - clock.from);
  evaluate(clock.t1, y1_, slopes_[1]);
  ++clock.nfe;
  clock.begin(speed, norm(Sum<T>().add(1.0, slopes_[1]).add(-1.0, slopes_[0]), y_), method_.order);
}

/// Take a step, to y1, and let the clock accept or reject it.
template <class T>
void Adjoint<T>::attempt(Clock& clock) {
  const int end = method_.slopes;
  const double h = clock.t1 - clock.from;
  for (int i = 1; i <= end; ++i) {
    move(sum_of(method_.rows[i], slopes_), h);
    if (i == end && !method_.fsal) break;
    const double c = method_.c[i];
    evaluate(c == 1 ? clock.t1 : clock.from + c * h, y1_, slopes_[i]);
    ++clock.nfe;
  }
  const double ratio = task_.knots.empty() ? norm(sum_of(method_.error, slopes_), y1_) * clock.h
                       : is_finite(y1_)    ? 0
                                           : std::numeric_limits<double>::quiet_NaN();
  clock.judge(ratio, task_, method_);
}

/// From the end of the last step to that of the span, in y1.
template <class T>
void Adjoint<T>::come_back(Clock& clock) {
  if (method_.dense_needs_end_slope && !method_.fsal) {
    evaluate(clock.t1, y1_, slopes_.back());
    ++clock.nfe;
  }
  const double h = clock.t1 - clock.from, fraction = (task_.times.back() - clock.from) / h;
  Sum<T> inside;
  for (int i = 0; i <= method_.slopes; ++i)
    if (method_.in_dense_output(i)) inside.add(method_.dense_weight(i, fraction), slopes_[i]);
  move(inside, h);
}

template class Adjoint<float>;
template class Adjoint<double>;

}  // namespace anode
