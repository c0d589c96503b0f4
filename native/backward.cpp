// The backward pass of a solve: the steps that were taken, last to first.

#include <algorithm>
#include <cmath>

#include "blocks.h"
#include "solve.h"

namespace anode {

/// Memory for going back over the steps of a strand's blocks.
template <class T>
struct Solve<T>::Workspace {
  std::vector<T*> slopes, pulled, times;
  std::vector<Evaluation<T>> evaluations;
  std::vector<std::vector<T*>> cotangents;  // of each slope, of each layer's output
  std::vector<T*> arrivals;
  T *h, *ones, *sum, *weights;
  long size, width;
  Arena& arena;
  long calls = 0;

  Workspace(const Shape& shape, const Method& method, long width, Arena& arena)
      : size(shape.dim() * width), width(width), arena(arena) {
    h = arena.take<T>(width);
    ones = arena.take<T>(width);
    weights = arena.take<T>(width);
    sum = arena.take<T>(size);
    for (long b = 0; b < width; ++b) ones[b] = 1;
    for (int i = 0; i <= method.slopes; ++i) {
      slopes.push_back(arena.take<T>(size));
      pulled.push_back(arena.take<T>(size));
      times.push_back(arena.take<T>(width));
      evaluations.push_back({arena.take<T>(size), arena.take<T>(shape.hidden_rows() * width)});
      cotangents.emplace_back();
      for (int l = 0; l < shape.layers(); ++l) cotangents.back().push_back(arena.take<T>(shape.sizes[l + 1] * width));
    }
  }

  T* arrival(std::size_t i) {
    while (arrivals.size() <= i) arrivals.push_back(arena.take<T>(size));
    return arrivals[i];
  }
};

template <class T>
long Solve<T>::backward(const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0,
                        const Parameters<T>& gradients) {
  std::vector<Sums<T>> sums;
  std::vector<typename Arena::Mark> marks;  // to begin there again if this is done once more
  for (Strand<T>& strand : strands_) {
    marks.push_back(strand.arena->mark());
    sums.emplace_back(shape_, *strand.arena);
  }
  std::vector<long> calls(cohorts_.size());
  all([&](Cohort<T>& cohort) {
    calls[&cohort - cohorts_.data()] = back(cohort, of_outputs, of_last, at_y0, sums);
  });
  for (std::size_t i = 0; i < strands_.size(); ++i) {
    sums[i].add_to(gradients, shape_, strands_[i].member);
    strands_[i].arena->rewind(marks[i]);
  }
  return *std::max_element(calls.begin(), calls.end());
}

template <class T>
long Solve<T>::back(Cohort<T>& cohort, const std::vector<const T*>& of_outputs, const T* of_last, T* at_y0,
                    std::vector<Sums<T>>& sums) {
  const long dim = shape_.dim();
  std::vector<long> calls(cohort.blocks.size());
  each(cohort, [&](Block<T>& block) {
    Arena& arena = *strands_[block.strand].arena;
    const typename Arena::Mark mark = arena.mark();
    Workspace workspace(shape_, *method_, block.width, arena);
    block.adjoint = nullptr;
    T* buffer = arena.template take<T>(workspace.size);
    const auto load = [&](const T* rows, T* to) {
      load_rows(rows + block.first * dim, block.rows, dim, block.width, to);
      for (long i = 0; i < dim; ++i)
        for (long b = block.rows; b < block.width; ++b) to[i * block.width + b] = 0;
    };
    if (of_last) load(of_last, block.adjoint = buffer);
    std::vector<T*> spare{buffer, workspace.sum};
    for (std::size_t n = cohort.steps.size(); n-- > 0;) {
      workspace.sum = block.adjoint == spare[0] ? spare[1] : spare[0];
      back_over(cohort, cohort.steps[n], block, n, of_outputs, workspace, sums[block.strand]);
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
void Solve<T>::back_over(const Cohort<T>& cohort, const Step& step, Block<T>& block, std::size_t n,
                         const std::vector<const T*>& of_outputs, Workspace& work, Sums<T>& sums) {
  const long dim = shape_.dim(), width = block.width;
  const Weights& b_row = method_->rows[method_->slopes];
  const auto clock_at = [&](long b) { return std::min<std::size_t>(b, step.t.size() - 1); };

  std::vector<const Emission*> arriving;
  for (const Emission& emission : step.emissions) {
    const T* rows = of_outputs[emission.position];
    if (!rows) continue;
    T* to = work.arrival(arriving.size());
    for (long b = 0; b < width; ++b) {
      const bool here = b < block.rows && !std::isnan(emission.fraction[cohort.pointwise ? b : 0]);
      for (long i = 0; i < dim; ++i) to[i * width + b] = here ? rows[(block.first + b) * dim + i] : T(0);
    }
    arriving.push_back(&emission);
  }
  if (!block.adjoint && arriving.empty()) return;

  int top = b_row.back().first;
  for (const Emission* emission : arriving)
    for (int i = top + 1; i <= method_->slopes && !emission->at_end; ++i)
      if (method_->in_dense_output(i)) top = i;

  for (long b = 0; b < width; ++b) work.h[b] = T(step.t1[clock_at(b)] - step.t[clock_at(b)]);
  for (int i = 0; i <= top; ++i)
    for (long b = 0; b < width && shape_.time; ++b) {
      const double t = step.t[clock_at(b)], t1 = step.t1[clock_at(b)], c = method_->c[i];
      work.times[i][b] = T(c == 1 ? t1 : t + c * (t1 - t));
    }

  const typename Block<T>::Kept& kept = block.kept[n];
  const Network<T>& network = networks_[block.member];
  std::vector<Evaluation<T>> evaluations = kept.evaluations;
  if (evaluations.empty()) {
    evaluations = work.evaluations;
    evaluations[0].x = kept.y;
    for (int i = 0; i <= top; ++i) {
      if (i > 0) {
        const Sum<T> sum = sum_of(method_->rows[i], work.slopes);
        kernels_.combine(sum.count, sum.weights, sum.parts, kept.y, work.h, dim, width, evaluations[i].x);
      }
      network.evaluate(kernels_, evaluations[i], work.times[i], width, work.slopes[i]);
      ++work.calls;
    }
  } else if (kept.pieced) {
    evaluations[0].hidden = work.evaluations[0].hidden;
    network.evaluate(kernels_, evaluations[0], work.times[0], width, work.slopes[0]);
    ++work.calls;
  }

  std::vector<int> pulled;
  for (int i = top; i >= 0; --i) {
    T* cotangent = work.cotangents[i].back();
    Sum<T> sum;
    for (auto [j, weight] : b_row)
      if (j == i && block.adjoint) sum.add(weight, block.adjoint);
    for (auto [j, weight] : method_->feeds[i])
      for (int k : pulled)
        if (k == j) sum.add(weight, work.pulled[j]);
    if (sum.count) kernels_.combine(sum.count, sum.weights, sum.parts, nullptr, work.h, dim, width, cotangent);
    bool any = sum.count > 0;
    for (std::size_t a = 0; a < arriving.size(); ++a) {
      const Emission& emission = *arriving[a];
      bool enters = false;
      for (long b = 0; b < width; ++b) {
        double weight = 0;
        if (emission.at_end) {
          for (auto [j, w] : b_row)
            if (j == i) weight = w;
        } else if (method_->in_dense_output(i)) {
          const double fraction = emission.fraction[clock_at(b)];
          weight = std::isnan(fraction) ? 0.0 : method_->dense_weight(i, fraction);
        }
        work.weights[b] = T(weight);
        enters |= weight != 0;
      }
      if (!enters) continue;
      const T *lanes = work.weights, *part = work.arrivals[a];
      kernels_.combine_pointwise(1, &lanes, &part, any ? cotangent : nullptr, work.h, dim, width, cotangent);
      any = true;
    }
    if (!any) continue;
    network.pull(kernels_, evaluations[i], work.cotangents[i], width, work.pulled[i]);
    pulled.push_back(i);
  }

  for (int l = 0; l < shape_.layers(); ++l) {
    const T *g[kMostSlopes], *x[kMostSlopes], *t[kMostSlopes];
    int count = 0;
    for (int i : pulled) {
      g[count] = work.cotangents[i][l];
      x[count] = network.input_of(l, evaluations[i], width);
      t[count++] = work.times[i];
    }
    kernels_.sums(shape_.sizes[l + 1], shape_.sizes[l], count, g, x, t, width, sums.layers[l]);
  }

  Sum<T> total;
  if (block.adjoint) total.add(1.0, block.adjoint);
  for (int i : pulled) total.add(1.0, work.pulled[i]);
  kernels_.combine(total.count, total.weights, total.parts, nullptr, work.ones, dim, width, work.sum);
  for (std::size_t a = 0; a < arriving.size(); ++a) {
    const T one = 1, *part = work.arrivals[a];
    kernels_.combine(1, &one, &part, work.sum, work.ones, dim, width, work.sum);
  }
  block.adjoint = work.sum;
}

template long Solve<float>::backward(const std::vector<const float*>&, const float*, float*, const Parameters<float>&);
template long Solve<double>::backward(const std::vector<const double*>&, const double*, double*,
                                      const Parameters<double>&);

}  // namespace anode
