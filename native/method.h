// Runge-Kutta methods and the control of step sizes, deciding as anode.ode does.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace anode {

using Weights = std::vector<std::pair<int, double>>;

inline Weights sparse(const std::vector<double>& all) {
  Weights some;
  for (int i = 0; i < int(all.size()); ++i)
    if (all[i] != 0) some.emplace_back(i, all[i]);
  return some;
}

/// An explicit Runge-Kutta method, see anode/ode/tableaus.py.
struct Method {
  int order, slopes;  // slopes: without that at the end of a step
  bool fsal, dense_needs_end_slope;
  std::vector<double> c;                         // of the slopes and of the end slope
  std::vector<Weights> rows;                     // of each slope; the last is that of the step
  Weights error;                                 // empty for steps of given size
  std::vector<std::vector<double>> polynomials;  // coefficients of x, x^2, ...
  std::vector<Weights> feeds;                    // for each slope, the later ones that it enters

  Method(int order, bool fsal, std::vector<double> nodes, const std::vector<std::vector<double>>& a,
         const std::vector<double>& b, const std::vector<double>& error,
         std::vector<std::vector<double>> polynomials)
      : order(order), slopes(int(b.size())), fsal(fsal), dense_needs_end_slope(false), c(std::move(nodes)),
        error(sparse(error)), polynomials(std::move(polynomials)) {
    c.push_back(1.0);
    for (const auto& row : a) rows.push_back(sparse(row));
    rows.push_back(sparse(b));
    for (double p : this->polynomials.back()) dense_needs_end_slope |= p != 0;
    feeds.resize(slopes + 1);
    for (int j = 0; j < int(rows.size()); ++j)
      for (auto [i, weight] : rows[j]) feeds[i].emplace_back(j, weight);
  }

  /// The weight of a slope in the dense output at a fraction of the step.
  double dense_weight(int slope, double fraction) const {
    const std::vector<double>& p = polynomials[slope];
    double value = p.back();
    for (int i = int(p.size()) - 2; i >= 0; --i) value = value * fraction + p[i];
    return value * fraction;
  }

  bool in_dense_output(int slope) const {
    for (double p : polynomials[slope])
      if (p != 0) return true;
    return false;
  }
};

/// A step-size controller, see anode/ode/control.py.
struct Controller {
  double p, i, d, safety, min_factor, max_factor;

  /// The size of the next step divided by the size of this one.
  double factor(double now, double before, double long_before, int order, bool accepted) const {
    if (!std::isfinite(now)) return min_factor;
    constexpr double tiny = 1e-30, floor = 1e-4;
    const double q = p / order, r = i / order, s = d / order;
    double factor = safety * std::pow(std::max(now, tiny), -(q + r + s));
    if (!accepted) return factor < 1 ? std::max(factor, min_factor) : 0.5;
    if (q + 2 * s != 0) factor *= std::pow(std::max(before, floor), q + 2 * s);
    if (s != 0) factor *= std::pow(std::max(long_before, floor), -s);
    return std::max(std::min(factor, max_factor), 1.0);
  }
};

/// The plan of a solve, see anode/ode/plan.py.
struct Task {
  std::vector<double> times;  // the start, those of the outputs, the end
  std::vector<int> wanted;    // which of them, in order of time
  std::vector<double> knots;  // ends of the steps, if these are given
  double rtol, atol, first_step, min_step, max_step;  // first_step: NaN if it is to be chosen
  long max_steps;
  Controller controller;
  bool grouped;  // whether groups have their own step sizes
  bool keeps_non_finite;        // whether fixed steps continue with NaN and infinity
  std::vector<int> components;  // features of each component of the state; the largest error of all is used

  double direction() const { return times.back() >= times.front() ? 1 : -1; }
};

enum Status : int { kSuccess = 0, kMaxSteps = 1, kUnderflow = 2, kNonFinite = 3 };

/// The time and step size of one group.
struct Clock {
  double t, from = 0, t1 = 0, h, error = 1, error_before = 1, last_error = 0;
  long nfe = 0, accepted = 0, rejected = 0, attempts = 0, overflows = 0;
  int status = kSuccess;
  bool active, moved = true, kept = false, set_aside = false;  // set_aside: its state is no longer in its block
  static constexpr double kTinyStep = 1e-6;

  explicit Clock(const Task& task)
      : t(task.times.front()), h(task.first_step), active(task.times.front() != task.times.back()) {}

  void stop(int why) {
    status = why;
    active = false;
  }

  /// Hairer's guess of the first step's size, as anode.ode.clocks makes it. First the size of a probing step, from the
  /// norms of the state and of the slope.
  void probe(double size, double speed, const Task& task) {
    const bool usable = size >= 1e-5 && speed >= 1e-5 && std::isfinite(speed);
    h = usable ? 0.01 * size / speed : kTinyStep;
    from = t;
    t1 = t + task.direction() * h;
  }

  /// Then the first step's size, from the norm of what the probing step changed the slope by.
  void begin(double speed, double change, int order) {
    const double bend = change / h, steepest = bend > speed ? bend : speed;
    const double guess = steepest > 1e-15 ? std::pow(0.01 / steepest, 1.0 / order) : std::max(kTinyStep, 1e-3 * h);
    h = std::isfinite(steepest) ? std::min(100 * h, guess) : kTinyStep;
  }

  /// Chooses t1, the end of the next step, which is `from` for a group that does not move.
  void propose(const Task& task) {
    from = t;
    if (!active) {
      t1 = t;
      return;
    }
    if (attempts >= task.max_steps) {
      // If most steps were rejected because of NaN or infinity, that is what used up the budget.
      stop(2 * overflows > rejected ? kNonFinite : kMaxSteps);
      t1 = t;
      return;
    }
    if (!task.knots.empty()) {
      t1 = task.knots[++attempts];
      return;
    }
    h = std::min(std::max(h, task.min_step), task.max_step);
    const double size = std::fabs(t);
    if (h < std::nextafter(size, std::numeric_limits<double>::infinity()) - size) {
      stop(std::isfinite(last_error) ? kUnderflow : kNonFinite);
      t1 = t;
      return;
    }
    ++attempts;
    t1 = t + task.direction() * h;
  }

  /// Accepts or rejects the step, advances time, and chooses the size of the next step.
  ///
  /// ratio: its error divided by what is allowed; for fixed steps NaN if the new state is not finite, otherwise 0.
  void judge(double ratio, const Task& task, const Method& method) {
    kept = false;
    if (!active) return;
    if (!task.knots.empty()) {
      kept = std::isfinite(ratio) || task.keeps_non_finite;
      if (!kept) stop(kNonFinite);
    } else {
      last_error = ratio;
      const bool good = ratio <= 1;
      kept = good || (h <= task.min_step && std::isfinite(ratio));
      if (!kept && h <= task.min_step) stop(kNonFinite);
      h *= task.controller.factor(ratio, error, error_before, method.order, good);
      if (good) {
        error_before = error;
        error = ratio;
      }
    }
    moved = kept;
    if (!kept) {
      ++rejected;
      overflows += !std::isfinite(ratio);
      return;
    }
    ++accepted;
    t = t1;
    if ((t - task.times.back()) * task.direction() >= 0) active = false;
  }
};

}  // namespace anode
