// The backward pass of a solve: the steps that were taken, last to first.

#include <algorithm>
#include <cmath>

#include "solve.h"

namespace anode {

/// Memory for going back over the steps of a strand's blocks.
template <class T>
struct Solve<T>::Workspace {
  std::vector<T*> slopes, pulled;
  std::vector<Evaluation<T>> evaluations;
  std::vector<T*> cotangents;  // of each slope, and of the affine maps that it is made with
  std::vector<T*> arrivals;
  T *h, *ones, *sum, *weights, *scratch, *loose;
  long size;
  Arena& arena;
  long calls = 0;

  Workspace(const Program& program, const Method& method, Width widths, Arena& arena)
      : size(program.dim * widths.points), arena(arena) {
    const long width = widths.points;
    h = arena.take<T>(width);
    ones = arena.take<T>(width);
    weights = arena.take<T>(width);
    sum = arena.take<T>(size);
    scratch = arena.take<T>(program.scratch * width);
    loose = arena.take<T>(program.loose * width);
    for (long b = 0; b < width; ++b) ones[b] = 1;
    for (int i = 0; i <= method.slopes; ++i) {
      slopes.push_back(arena.take<T>(size));
      pulled.push_back(arena.take<T>(size));
      evaluations.push_back({take_state<T>(arena, program.dim, width), arena.take<T>(program.kept_size(widths))});
      cotangents.push_back(arena.take<T>(program.cotangents_size(widths)));
    }
  }

  T* arrival(std::size_t i) {
    while (arrivals.size() <= i) arrivals.push_back(arena.take<T>(size));
    return arrivals[i];
  }
};

template <class T>
long Solve<T>::backward(const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0,
                        const Tensors<T>& gradients, const std::function<bool()>& is_stopped) {
  is_stopped_ = is_stopped;
  std::vector<Sums<T>> sums;
  std::vector<typename Arena::Mark> marks;  // to begin there again if this is done once more
  for (Strand<T>& strand : strands_) {
    marks.push_back(strand.arena->mark());
    sums.emplace_back(*program_, *strand.arena);
  }
  std::vector<long> calls(cohorts_.size());
  all([&](Cohort<T>& cohort) {
    calls[&cohort - cohorts_.data()] = back(cohort, of_outputs, of_last, at_y0, sums);
  });
  for (std::size_t i = 0; i < strands_.size(); ++i) {
    sums[i].add_to(gradients, *program_, strands_[i].member);
    strands_[i].arena->rewind(marks[i]);
  }
  return *std::max_element(calls.begin(), calls.end());
}

template <class T>
long Solve<T>::back(Cohort<T>& cohort, const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0,
                    std::vector<Sums<T>>& sums) {
  const long dim = dim_;
  std::vector<long> calls(cohort.blocks.size());
  each(cohort, [&](Block<T>& block) {
    Arena& arena = *strands_[block.strand].arena;
    const typename Arena::Mark mark = arena.mark();
    Workspace workspace(*program_, *method_, block.widths(), arena);
    block.adjoint = nullptr;
    T* buffer = arena.template take<T>(workspace.size);
    if (of_last)
      load_cotangent(of_last + block.first * dim, block.rows, dim, block.width, block.adjoint = buffer);
    std::vector<T*> spare{buffer, workspace.sum};
    for (std::size_t n = cohort.steps.size(); n-- > 0 && !is_stopped_();) {
      workspace.sum = block.adjoint == spare[0] ? spare[1] : spare[0];
      back_over(cohort.steps[n], block, n, of_outputs, workspace, sums[block.strand]);
    }
    for (long b = 0; b < block.rows; ++b)
      for (long i = 0; i < dim; ++i)
        at_y0[(block.first + b) * dim + i] = block.adjoint ? block.adjoint[i * block.width + b] : T(0);
    for (std::size_t n = 0; n < of_outputs.size(); ++n) {
      if (!of_outputs[n] || task_.times[task_.wanted[n]] != task_.times.front()) continue;
      for (long i = block.first * dim; i < (block.first + block.rows) * dim; ++i) at_y0[i] += of_outputs[n][i];
    }
    calls[&block - cohort.blocks.data()] = workspace.calls;
    arena.rewind(mark);
  });
  return *std::max_element(calls.begin(), calls.end());
}

/// The adjoint of one step, for one block. With v the cotangent of its end the chain rule reads, from the last slope to
/// the first, (cotangent of k_i) = h (b_i v + sum over j > i of a_ji u_j), where u_j is that of k_j pulled back to the
/// state; and v + sum of u_i is the cotangent of its start. Outputs inside enter like the end, with their own weights.
template <class T>
struct Solve<T>::BackStep {
  const Solve& solve;
  const Step& step;
  const Block<T>& block;
  const typename Block<T>::Kept& kept;
  Workspace& work;
  const long dim = solve.dim_, width = block.width;
  const Method& method = *solve.method_;
  const Network<T>& network = solve.networks_[block.member];
  const Weights& b_row = method.rows[method.slopes];

  std::vector<const Emission*> arriving{};   // the outputs of which there are cotangents, which are in work.arrivals
  std::vector<Evaluation<T>> evaluations{};  // of the slopes
  std::vector<int> pulled{};                 // slopes whose cotangents are in work.pulled

  /// Which entry of the step's times, and of an emission's fractions, belongs to a point.
  std::size_t clock_of(long point) const { return std::min<std::size_t>(point, step.t.size() - 1); }

  void take_arrivals(const std::vector<const T*>& of_outputs) {
    for (const Emission& emission : step.emissions) {
      const T* rows = of_outputs[emission.position];
      if (!rows) continue;
      T* to = work.arrival(arriving.size());
      for (long b = 0; b < width; ++b) {
        const bool here = b < block.rows && !std::isnan(emission.fraction[clock_of(b)]);
        for (long i = 0; i < dim; ++i) to[i * width + b] = here ? rows[(block.first + b) * dim + i] : T(0);
      }
      arriving.push_back(&emission);
    }
  }

  /// The last slope that anything is made of.
  int last_slope() const {
    int last = b_row.back().first;
    for (const Emission* emission : arriving)
      for (int i = last + 1; i <= method.slopes && !emission->at_end; ++i)
        if (method.in_dense_output(i)) last = i;
    return last;
  }

  void set_sizes() {
    for (long b = 0; b < width; ++b) work.h[b] = T(step.t1[clock_of(b)] - step.t[clock_of(b)]);
  }

  void set_times(int slope) {
    T* times = times_of(evaluations[slope].x, width);
    for (long b = 0; b < width && solve.program_->time; ++b) {
      const double t = step.t[clock_of(b)], t1 = step.t1[clock_of(b)], c = method.c[slope];
      times[b] = T(c == 1 ? t1 : t + c * (t1 - t));
    }
  }

  /// The evaluations that were kept, or else made again.
  void evaluate(int last) {
    const auto again = [this](int i) {
      set_times(i);
      network.evaluate(solve.kernels_, evaluations[i], work.scratch, block.widths(), work.slopes[i]);
      ++work.calls;
    };
    evaluations = kept.evaluations;
    if (evaluations.empty()) {
      evaluations = work.evaluations;
      evaluations[0].x = kept.y;
      again(0);
      for (int i = 1; i <= last; ++i) {
        const Sum<T> sum = sum_of(method.rows[i], work.slopes);
        solve.kernels_.combine(sum.count, sum.weights, sum.parts, kept.y, work.h, dim, width, evaluations[i].x);
        again(i);
      }
    } else if (kept.pieced) {
      evaluations[0].kept = work.evaluations[0].kept;
      again(0);
    }
  }

  /// Pull the cotangent of a slope, if it has one, back to the state.
  void pull(int slope, const Sums<T>& sums) {
    T* cotangent = work.cotangents[slope];
    Sum<T> sum;
    for (auto [j, weight] : b_row)
      if (j == slope && block.adjoint) sum.add(weight, block.adjoint);
    for (auto [j, weight] : method.feeds[slope])
      for (int k : pulled)
        if (k == j) sum.add(weight, work.pulled[j]);
    if (sum.count) solve.kernels_.combine(sum.count, sum.weights, sum.parts, nullptr, work.h, dim, width, cotangent);
    bool any = sum.count > 0;
    for (std::size_t a = 0; a < arriving.size(); ++a) {
      if (!set_weights(slope, *arriving[a])) continue;
      const T *lanes = work.weights, *part = work.arrivals[a];
      solve.kernels_.combine_pointwise(1, &lanes, &part, any ? cotangent : nullptr, work.h, dim, width, cotangent);
      any = true;
    }
    if (!any) return;
    network.pull(solve.kernels_, evaluations[slope], cotangent, work.loose, block.widths(), work.pulled[slope], sums);
    pulled.push_back(slope);
  }

  /// The weight of a slope in an output, for each point; whether there is any.
  bool set_weights(int slope, const Emission& emission) {
    bool any = false;
    for (long b = 0; b < width; ++b) {
      double weight = 0;
      if (emission.at_end) {
        for (auto [j, w] : b_row)
          if (j == slope) weight = w;
      } else if (method.in_dense_output(slope)) {
        const double fraction = emission.fraction[clock_of(b)];
        weight = std::isnan(fraction) ? 0.0 : method.dense_weight(slope, fraction);
      }
      work.weights[b] = T(weight);
      any |= weight != 0;
    }
    return any;
  }

  void add_gradients(const Sums<T>& sums) {
    const Evaluation<T>* at[kMostSlopes];
    T* cotangents[kMostSlopes];
    int count = 0;
    for (int i : pulled) {
      at[count] = &evaluations[i];
      cotangents[count++] = work.cotangents[i];
    }
    network.add_gradients(solve.kernels_, count, at, cotangents, block.widths(), sums);
  }

  /// The cotangent of the state at the start, in work.sum.
  void add_up() {
    Sum<T> total;
    if (block.adjoint) total.add(1.0, block.adjoint);
    for (int i : pulled) total.add(1.0, work.pulled[i]);
    solve.kernels_.combine(total.count, total.weights, total.parts, nullptr, work.ones, dim, width, work.sum);
    for (std::size_t a = 0; a < arriving.size(); ++a) {
      const T one = 1, *part = work.arrivals[a];
      solve.kernels_.combine(1, &one, &part, work.sum, work.ones, dim, width, work.sum);
    }
  }
};

template <class T>
void Solve<T>::back_over(const Step& step, Block<T>& block, std::size_t n, const std::vector<const T*>& of_outputs,
                         Workspace& work, Sums<T>& sums) {
  BackStep back{*this, step, block, block.kept[n], work};
  back.take_arrivals(of_outputs);
  if (!block.adjoint && back.arriving.empty()) return;
  const int last = back.last_slope();
  back.set_sizes();
  back.evaluate(last);
  for (int slope = last; slope >= 0; --slope) back.pull(slope, sums);
  back.add_gradients(sums);
  back.add_up();
  block.adjoint = work.sum;
}

template long Solve<float>::backward(const std::vector<const float*>&, const float*, float*, const Tensors<float>&,
                                     const std::function<bool()>&);
template long Solve<double>::backward(const std::vector<const double*>&, const double*, double*,
                                      const Tensors<double>&, const std::function<bool()>&);

}  // namespace anode
