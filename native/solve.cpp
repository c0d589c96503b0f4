#include "solve.h"

#include <cmath>
#include <limits>

#include "team.h"

namespace anode {
namespace {

constexpr long kCohortRows = 64;         // points with step sizes of their own that are evaluated together
constexpr long kElementsKept = 1 << 22;  // of evaluations that are remembered for the backward pass
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const Clock& clock_of(const std::vector<Clock>& clocks, long b) {
  return clocks[std::min<std::size_t>(b, clocks.size() - 1)];
}

}  // namespace

// ------------------------------------------------------------------------------------------------- cutting into blocks

template <class T>
Solve<T>::Solve(std::shared_ptr<const Method> method, Task task, std::shared_ptr<const Program> program,
                const Tensors<const T>& tensors, const Extent& extent, const Kernels<T>& kernels, bool keep,
                int threads)
    : method_(std::move(method)), task_(std::move(task)), program_(std::move(program)), dim_(program_->dim),
      extent_(extent), kernels_(kernels), keep_(keep), threads_(threads) {
  for (int member = 0; member < extent.members; ++member)
    networks_.emplace_back(*program_, tensors, member, *arena_);
  if (task_.components.empty()) task_.components.push_back(int(dim_));
  cut();
}

template <class T>
void Solve<T>::cut() {
  const bool pointwise = task_.grouped && extent_.group_rows == 1;
  const long rows = extent_.rows / extent_.members;
  together_ = extent_.rows == extent_.group_rows && !pointwise;
  if (together_) cohorts_.push_back({{}, {Clock(task_)}, 0, false, {}, 0, 0});
  for (int member = 0; member < extent_.members; ++member) {
    if (!together_) {
      add_cohorts(member, pointwise);
      continue;
    }
    const std::vector<Piece> pieces = cut_rows(member * rows, rows, kernels_.lanes);
    in_strands(member, long(pieces.size()),
               [&](long i) { cohorts_.front().blocks.push_back(block(pieces[i], member, pointwise)); });
  }
  long remembered = 0;  // elements of all blocks' evaluations of one slope
  for (const Cohort<T>& cohort : cohorts_)
    for (const Block<T>& block : cohort.blocks)
      remembered += (dim_ + 1) * block.width + program_->kept_size(block.widths());
  steps_kept_ = keep_ ? kElementsKept / (remembered * method_->slopes) : 0;
}

/// The cohorts of a member whose groups, or points, have step sizes of their own.
template <class T>
void Solve<T>::add_cohorts(int member, bool pointwise) {
  const long rows = extent_.rows / extent_.members, most = pointwise ? kCohortRows : extent_.group_rows;
  const long count = (rows + most - 1) / most;
  in_strands(member, count, [&](long i) {
    const Range range = range_of(i, count, rows);
    const long first = member * rows + range.first, size = range.last - range.first;
    Cohort<T> cohort{{}, {}, first / extent_.group_rows, pointwise, {}, 0, 0};
    cohort.clocks.assign(pointwise ? size : 1, Clock(task_));
    for (const Piece& piece : cut_rows(first, size, kernels_.lanes))
      cohort.blocks.push_back(block(piece, member, pointwise));
    strands_.back().cohorts.push_back(int(cohorts_.size()));
    cohorts_.push_back(std::move(cohort));
  });
}

/// Calls piece(i) for all i < count, each while its strand, a new one of the member, is the last.
template <class T>
void Solve<T>::in_strands(int member, long count, const std::function<void(long)>& piece) {
  const long parts = std::min<long>(count, strands_of_each(extent_.members));
  for (long part = 0; part < parts; ++part) {
    strands_.emplace_back(member, *program_, kBlockRows + kernels_.lanes);
    const Range range = range_of(part, parts, count);
    for (long i = range.first; i < range.last; ++i) piece(i);
  }
}

/// A block of the last strand.
template <class T>
Block<T> Solve<T>::block(const Piece& piece, int member, bool pointwise) const {
  Block<T> block{};
  block.member = member;
  block.strand = int(strands_.size()) - 1;
  block.first = piece.first;
  block.rows = piece.rows;
  block.width = piece.width;
  block.uniform_width = pointwise ? piece.width : kernels_.lanes;
  return block;
}

/// Something for every block of a cohort; on several threads if the cohort is the only one.
template <class T>
void Solve<T>::each(Cohort<T>& cohort, const std::function<void(Block<T>&)>& piece) {
  if (!together_ || strands_.size() == 1) {
    for (Block<T>& block : cohort.blocks) piece(block);
    return;
  }
  share(int(strands_.size()), threads_, [&](int strand) {
    for (Block<T>& block : cohort.blocks)
      if (block.strand == strand) piece(block);
  });
}

/// Something for every cohort.
template <class T>
void Solve<T>::all(const std::function<void(Cohort<T>&)>& piece) {
  if (together_) return piece(cohorts_.front());
  const auto share_strands = extent_.rows < kLargeRows ? share : share_borrowed;
  share_strands(int(strands_.size()), threads_, [&](int strand) {
    for (int cohort : strands_[strand].cohorts) piece(cohorts_[cohort]);
  });
}

// ------------------------------------------------------------------------------------------------------------- forward

template <class T>
long Solve<T>::run(const T* y0, const std::vector<T*>& outputs, T* last, const Groups& groups,
                   const std::function<bool()>& is_stopped) {
  is_stopped_ = is_stopped;
  y0_ = y0;
  outputs_ = outputs;
  last_ = last;
  groups_ = groups;
  all([this](Cohort<T>& cohort) { solve(cohort); });
  long calls = 0;
  for (const Cohort<T>& cohort : cohorts_) calls = std::max(calls, cohort.calls);
  return calls;
}

template <class T>
bool Solve<T>::agrees(const T* y0, const T* slope, double tolerance) {
  double largest = 0, off = 0;
  for (const Cohort<T>& cohort : cohorts_)
    for (const Block<T>& block : cohort.blocks) {
      Strand<T>& strand = strands_[block.strand];
      const typename Arena::Mark mark = strand.arena->mark();
      const Evaluation<T> at{take_state<T>(*strand.arena, dim_, block.width), strand.kept};
      T* found = strand.arena->template take<T>(dim_ * block.width);
      load_rows(y0 + block.first * dim_, block.rows, dim_, block.width, at.x);
      for (long b = 0; b < block.width; ++b) times_of(at.x, block.width)[b] = T(task_.times.front());
      networks_[block.member].evaluate(kernels_, at, strand.scratch, block.widths(), found, false);
      for (long b = 0; b < block.rows; ++b)
        for (long i = 0; i < dim_; ++i) {
          const double own = found[i * block.width + b], theirs = slope[(block.first + b) * dim_ + i];
          if (std::isfinite(theirs)) largest = std::max(largest, std::fabs(theirs));
          if (own == theirs || (std::isnan(own) && std::isnan(theirs))) continue;
          const double difference = std::fabs(own - theirs);
          if (!std::isfinite(difference)) return false;
          off = std::max(off, difference);
        }
      strand.arena->rewind(mark);
    }
  return off <= tolerance * largest;
}

template <class T>
void Solve<T>::solve(Cohort<T>& cohort) {
  Arena& arena = *strands_[cohort.blocks.front().strand].arena;
  const Arena::Mark mark = arena.mark();
  each(cohort, [this](Block<T>& block) { prepare(block); });
  while (cohort.pending < task_.wanted.size() &&
         task_.times[task_.wanted[cohort.pending]] == task_.times.front())
    ++cohort.pending;  // prepare() has put these out

  const auto active = [&] {
    for (const Clock& clock : cohort.clocks)
      if (clock.active) return true;
    return false;
  };
  bool has_slope = false;
  while (active() && !is_stopped_()) {
    if (!has_slope) {
      first_slope(cohort);
      has_slope = true;
      if (task_.grouped || task_.knots.empty()) give_up_without_slope(cohort);
      continue;
    }
    if (task_.knots.empty() && std::isnan(cohort.clocks.front().h)) first_step(cohort);
    for (Clock& clock : cohort.clocks) clock.propose(task_);
    if (!active()) break;
    attempt(cohort);
    if (judge(cohort)) has_slope = advance(cohort);
  }
  finish(cohort);
  if (!keep_ && !together_) arena.rewind(mark);  // for the next cohort of the strand
}

/// Memory for a block, and the state at the start in it.
template <class T>
void Solve<T>::prepare(Block<T>& block) {
  Strand<T>& strand = strands_[block.strand];
  const long size = dim_ * block.width;
  for (int i = 0; i <= method_->slopes; ++i) block.slopes.push_back(strand.arena->template take<T>(size));
  block.h = strand.arena->template take<T>(block.width);
  block.squares = strand.arena->template take<T>(block.width * long(task_.components.size()));
  block.scratch = strand.arena->template take<T>(size);
  for (int i = 0; i <= method_->slopes; ++i) block.evaluations.push_back(room(block));
  const T* rows = y0_ + block.first * dim_;
  load_rows(rows, block.rows, dim_, block.width, block.evaluations[0].x);
  for (std::size_t n = 0; n < outputs_.size(); ++n) {
    T* out = outputs_[n] + block.first * dim_;
    const bool at_start = task_.times[task_.wanted[n]] == task_.times.front();
    for (long i = 0; i < block.rows * dim_; ++i) out[i] = at_start ? rows[i] : T(kNaN);
  }
}

/// Where another evaluation can be written down.
template <class T>
Evaluation<T> Solve<T>::room(Block<T>& block) {
  Strand<T>& strand = strands_[block.strand];
  const bool remembered = long(block.kept.size()) < steps_kept_;
  return {take_state<T>(*strand.arena, dim_, block.width),
          remembered ? strand.arena->template take<T>(program_->kept_size(block.widths())) : strand.kept};
}

template <class T>
void Solve<T>::evaluate(Block<T>& block, int slope) {
  const Strand<T>& strand = strands_[block.strand];
  const Evaluation<T>& at = block.evaluations[slope];
  const bool remembered = keep_ && at.kept != strand.kept;
  networks_[block.member].evaluate(kernels_, at, strand.scratch, block.widths(), block.slopes[slope], remembered);
}

/// For every point, the sum of squares of a scaled error, for each component of the state.
template <class T>
void Solve<T>::set_squares(Block<T>& block, const Sum<T>& error, const T* y, const T* y1) {
  long first = 0;
  T* out = block.squares;
  for (int size : task_.components) {
    const T* parts[kMostSlopes];
    for (int i = 0; i < error.count; ++i) parts[i] = error.parts[i] + first;
    kernels_.squares(error.count, error.weights, parts, y + first, y1 + first, T(task_.rtol), T(task_.atol), size,
                     block.width, out);
    first += size * block.width;
    out += block.width;
  }
}

/// The times at a fraction of the step, as the field sees them.
template <class T>
void Solve<T>::set_times(const Cohort<T>& cohort, Block<T>& block, int slope, double c) const {
  if (!program_->time) return;
  T* times = times_of(block.evaluations[slope].x, block.width);
  for (long b = 0; b < block.width; ++b) {
    const Clock& clock = clock_of(cohort.clocks, b);
    times[b] = T(c == 1 ? clock.t1 : clock.from + c * (clock.t1 - clock.from));
  }
}

template <class T>
void Solve<T>::set_sizes(const Cohort<T>& cohort, Block<T>& block) const {
  for (long b = 0; b < block.width; ++b) {
    const Clock& clock = clock_of(cohort.clocks, b);
    block.h[b] = T(clock.t1 - clock.from);
  }
}

template <class T>
void Solve<T>::first_slope(Cohort<T>& cohort) {
  cohort.calls += 1;
  for (Clock& clock : cohort.clocks) {
    clock.nfe += clock.active && clock.moved;
    clock.from = clock.t;
  }
  each(cohort, [&](Block<T>& block) {
    set_times(cohort, block, 0, 0.0);
    evaluate(block, 0);
    block.pieced = false;
  });
}

/// Stop the groups whose slope is not finite.
template <class T>
void Solve<T>::give_up_without_slope(Cohort<T>& cohort) {
  each(cohort, [&](Block<T>& block) {
    mark(block.slopes[0], block);
  });
  if (!cohort.pointwise) {
    Clock& clock = cohort.clocks.front();
    if (clock.active && !std::isfinite(root_mean_square(cohort, 0))) clock.stop(kNonFinite);
    return;
  }
  // The other points of the block go on; what is not finite would spoil sums even when multiplied by zero.
  Block<T>& block = cohort.blocks.front();
  long healthy = -1;
  for (long b = block.rows - 1; b >= 0; --b)
    if (block.squares[b] == 0) healthy = b;
  bool changed = false;
  for (long b = 0; b < block.width; ++b) {
    if (block.squares[b] == 0) continue;
    if (b < block.rows && cohort.clocks[b].active) {
      for (long i = 0; i < dim_; ++i)
        last_[block.point(b) * dim_ + i] = block.evaluations[0].x[i * block.width + b];
      cohort.clocks[b].stop(kNonFinite);
      cohort.clocks[b].set_aside = true;
    }
    for (long i = 0; healthy >= 0 && i < dim_; ++i) {
      T* row = block.evaluations[0].x + i * block.width;
      row[b] = row[healthy];
    }
    changed = true;
  }
  if (changed && healthy >= 0) {
    set_times(cohort, block, 0, 0.0);
    evaluate(block, 0);
    cohort.calls += 1;
  }
}

/// squares[b] = 0 if all features of a point are finite, else NaN; nothing for other components than the first.
template <class T>
void Solve<T>::mark(const T* x, Block<T>& block) const {
  const long width = block.width;
  T* out = block.squares;
  for (long b = 0; b < width * long(task_.components.size()); ++b) out[b] = 0;
  for (long i = 0; i < dim_; ++i)
    for (long b = 0; b < width; ++b) out[b] += x[i * width + b] * T(0);
}

/// The root mean square of what `squares` holds, over the points of a clock; the largest of all components.
template <class T>
double Solve<T>::root_mean_square(const Cohort<T>& cohort, int clock) const {
  double largest = 0;
  for (std::size_t c = 0; c < task_.components.size(); ++c) {
    double sum = 0;
    long rows = 0;
    for (const Block<T>& block : cohort.blocks) {
      const T* squares = block.squares + long(c) * block.width;
      for (long b = cohort.pointwise ? clock : 0; b < (cohort.pointwise ? clock + 1 : block.rows); ++b, ++rows)
        sum += double(squares[b]);
    }
    const double size = std::sqrt(sum / double(rows * task_.components[c]));
    if (!(size <= largest)) largest = size;  // NaN too, and it stays
    if (std::isnan(largest)) return largest;
  }
  return largest;
}

/// For each clock, the norm of a sum in a cohort's blocks, scaled as errors are.
template <class T>
std::vector<double> Solve<T>::norms(Cohort<T>& cohort, const std::function<Sum<T>(const Block<T>&)>& what) {
  each(cohort, [&](Block<T>& block) {
    set_squares(block, what(block), block.evaluations[0].x, block.evaluations[0].x);
  });
  std::vector<double> values;
  for (std::size_t i = 0; i < cohort.clocks.size(); ++i) values.push_back(root_mean_square(cohort, int(i)));
  return values;
}

/// Choose the size of the first step.
template <class T>
void Solve<T>::first_step(Cohort<T>& cohort) {
  std::vector<Clock>& clocks = cohort.clocks;
  const auto state = [](const Block<T>& block) { return Sum<T>().add(1.0, block.evaluations[0].x); };
  const auto slope = [](const Block<T>& block) { return Sum<T>().add(1.0, block.slopes[0]); };
  const std::vector<double> sizes = norms(cohort, state), speeds = norms(cohort, slope);
  for (std::size_t i = 0; i < clocks.size(); ++i) clocks[i].probe(sizes[i], speeds[i], task_);
  each(cohort, [&](Block<T>& block) {
    set_sizes(cohort, block);
    const Sum<T> sum = slope(block);
    kernels_.combine(sum.count, sum.weights, sum.parts, block.evaluations[0].x, block.h, dim_, block.width,
                     block.evaluations[1].x);
    set_times(cohort, block, 1, 1.0);
    evaluate(block, 1);
  });
  cohort.calls += 1;
  const std::vector<double> changes = norms(cohort, [](const Block<T>& block) {
    return Sum<T>().add(1.0, block.slopes[1]).add(-1.0, block.slopes[0]);
  });
  for (std::size_t i = 0; i < clocks.size(); ++i) {
    clocks[i].begin(speeds[i], changes[i], method_->order);
    clocks[i].nfe += clocks[i].active;
  }
}

/// Take a step.
template <class T>
void Solve<T>::attempt(Cohort<T>& cohort) {
  each(cohort, [&](Block<T>& block) { attempt(cohort, block); });
  const int evaluations = method_->slopes - 1 + method_->fsal;
  cohort.calls += evaluations;
  for (Clock& clock : cohort.clocks)
    if (clock.active) clock.nfe += evaluations;
}

template <class T>
void Solve<T>::attempt(const Cohort<T>& cohort, Block<T>& block) {
  const int end = method_->slopes;
  set_sizes(cohort, block);
  for (int i = 1; i <= end; ++i) {
    const Sum<T> sum = sum_of(method_->rows[i], block.slopes);
    kernels_.combine(sum.count, sum.weights, sum.parts, block.evaluations[0].x, block.h, dim_, block.width,
                     block.evaluations[i].x);
    if (i == end && !method_->fsal) break;
    set_times(cohort, block, i, method_->c[i]);
    evaluate(block, i);
  }
  const T* y1 = block.evaluations[end].x;
  if (task_.knots.empty()) return set_squares(block, sum_of(method_->error, block.slopes), block.evaluations[0].x, y1);
  mark(y1, block);
}

/// Let each clock accept or reject the step; whether any accepts it.
template <class T>
bool Solve<T>::judge(Cohort<T>& cohort) {
  bool any = false;
  for (std::size_t i = 0; i < cohort.clocks.size(); ++i) {
    Clock& clock = cohort.clocks[i];
    const double ratio = root_mean_square(cohort, int(i));
    clock.judge(task_.knots.empty() ? ratio * clock.h : ratio, task_, *method_);
    any |= clock.kept;
  }
  return any;
}

/// Write the outputs inside an accepted step and go to its end; whether the slope there is known.
template <class T>
bool Solve<T>::advance(Cohort<T>& cohort) {
  Step step;
  for (const Clock& clock : cohort.clocks) {
    step.t.push_back(clock.from);
    step.t1.push_back(clock.kept ? clock.t1 : clock.from);
  }
  step.emissions = emissions(cohort);
  bool inside = false;
  for (const Emission& emission : step.emissions) inside |= !emission.at_end;
  const bool extra = inside && method_->dense_needs_end_slope && !method_->fsal;
  if (extra) end_slope(cohort);
  for (const Emission& emission : step.emissions)
    each(cohort, [&](Block<T>& block) { emit(cohort, block, emission); });
  const bool has_end_slope = method_->fsal || extra;
  move_on(cohort, has_end_slope);
  if (keep_)
    cohort.steps.push_back(std::move(step));
  else if (cohort.pointwise)
    shrink(cohort);
  return has_end_slope;
}

/// Evaluate the slope at the end of a step, for a method whose stages do not.
template <class T>
void Solve<T>::end_slope(Cohort<T>& cohort) {
  each(cohort, [&](Block<T>& block) {
    set_times(cohort, block, method_->slopes, 1.0);
    evaluate(block, method_->slopes);
  });
  cohort.calls += 1;
  for (Clock& clock : cohort.clocks) clock.nfe += clock.kept;
}

/// The wanted times that the kept steps have passed.
template <class T>
std::vector<Emission> Solve<T>::emissions(Cohort<T>& cohort) {
  std::vector<Emission> passed;
  const double direction = task_.direction();
  const bool ends_count = !task_.grouped || !task_.knots.empty();
  for (std::size_t n = cohort.pending; n < task_.wanted.size(); ++n) {
    const double time = task_.times[task_.wanted[n]];
    Emission emission{int(n), true, {}};
    bool any = false, ahead = false;
    for (const Clock& clock : cohort.clocks) {
      const bool here = clock.kept && (time - clock.from) * direction > 0 && (time - clock.t1) * direction <= 0;
      any |= here;
      ahead |= clock.kept && (time - clock.t1) * direction > 0;
      emission.fraction.push_back(here ? (time - clock.from) / (clock.t1 - clock.from) : kNaN);
      emission.at_end &= !here || (ends_count && time == clock.t1);
    }
    if (any) {
      passed.push_back(std::move(emission));
      if (!cohort.pointwise) cohort.pending = n + 1;
    } else if (ahead && !cohort.pointwise) {
      break;
    }
  }
  return passed;
}

/// Write the outputs inside a step.
template <class T>
void Solve<T>::emit(const Cohort<T>& cohort, Block<T>& block, const Emission& emission) {
  const long dim = dim_, width = block.width;
  const T* state = block.evaluations[method_->slopes].x;
  if (!emission.at_end) {
    int count = 0;
    std::vector<std::vector<T>> weights;
    const T *parts[kMostSlopes], *lanes[kMostSlopes];
    for (int i = 0; i <= method_->slopes; ++i) {
      if (!method_->in_dense_output(i)) continue;
      weights.emplace_back(width);
      for (long b = 0; b < width; ++b) {
        const double fraction = emission.fraction[std::min<std::size_t>(b, emission.fraction.size() - 1)];
        weights.back()[b] = T(method_->dense_weight(i, std::isnan(fraction) ? 0.0 : fraction));
      }
      parts[count++] = block.slopes[i];
    }
    for (int i = 0; i < count; ++i) lanes[i] = weights[i].data();
    kernels_.combine_pointwise(count, lanes, parts, block.evaluations[0].x, block.h, dim, width, block.scratch);
    state = block.scratch;
  }
  T* const out = outputs_[emission.position];
  for (long b = 0; b < block.rows; ++b) {
    if (std::isnan(emission.fraction[cohort.pointwise ? b : 0])) continue;
    for (long i = 0; i < dim; ++i) out[block.point(b) * dim + i] = state[i * width + b];
  }
}

/// Make the end of the step the start of the next, for the points that keep it.
template <class T>
void Solve<T>::move_on(Cohort<T>& cohort, bool has_end_slope) {
  bool whole = true;
  for (const Clock& clock : cohort.clocks) whole &= clock.kept || clock.t1 == clock.from;
  each(cohort, [&](Block<T>& block) {
    const int end = method_->slopes;
    const bool was_remembered = whole && long(block.kept.size()) < steps_kept_;
    Evaluation<T> y = block.evaluations[0], y1 = block.evaluations[end];
    if (keep_) {
      block.kept.push_back({y.x, {}, block.pieced});
      if (was_remembered) block.kept.back().evaluations = block.evaluations;
    }
    if (!whole) {  // some points reject the step, so its evaluations cannot be kept, not even for the other points
      for (long b = 0; b < block.width; ++b) {
        if (clock_of(cohort.clocks, b).kept) continue;
        for (long at = b; at < dim_ * block.width; at += block.width) {
          y1.x[at] = y.x[at];
          block.slopes[end][at] = block.slopes[0][at];
        }
      }
    }
    block.pieced = !whole && has_end_slope;
    std::swap(block.slopes[0], block.slopes[end]);
    block.evaluations[0] = y1;
    if (!keep_) {
      block.evaluations[end] = y;
    } else {
      // Evaluations that are kept need new memory, and so does, in any case, the end of the next step.
      for (int i = was_remembered ? 1 : end; i <= end; ++i) block.evaluations[i] = room(block);
    }
  });
}

/// The state of a point at the end of its last step.
template <class T>
void Solve<T>::write_end(const Cohort<T>& cohort, const Block<T>& block, long b) {
  if (cohort.pointwise && cohort.clocks[b].set_aside) return;
  T* const last = last_ + block.point(b) * dim_;
  for (long i = 0; i < dim_; ++i) last[i] = block.evaluations[0].x[i * block.width + b];
}

template <class T>
void Solve<T>::write_result(const Clock& clock, long group) {
  groups_.t[group] = clock.t;
  groups_.status[group] = clock.status;
  groups_.nfe[group] = clock.nfe;
  groups_.accepted[group] = clock.accepted;
  groups_.rejected[group] = clock.rejected;
}

/// Take the points that have finished out of a block, if it then needs fewer vectors. Without it, predictions evaluate
/// 1.2 to 1.6 times as many points as there are.
template <class T>
void Solve<T>::shrink(Cohort<T>& cohort) {
  Block<T>& block = cohort.blocks.front();
  const long lanes = kernels_.lanes;
  std::vector<long> left, points;
  for (long b = 0; b < block.rows; ++b)
    if (cohort.clocks[b].active) left.push_back(b);
  const long count = long(left.size()), width = (count + lanes - 1) / lanes * lanes;
  if (count == 0 || width == block.width) return;
  for (long b = 0; b < block.rows; ++b)
    if (!cohort.clocks[b].active) {
      write_end(cohort, block, b);
      write_result(cohort.clocks[b], block.point(b));
    }
  for (T* rows : {block.evaluations[0].x, block.slopes[0]})
    for (long i = 0; i < dim_; ++i)  // every number moves forward, so none is overwritten before it has moved
      for (long b = 0; b < width; ++b) rows[i * width + b] = rows[i * block.width + left[std::min(b, count - 1)]];
  for (long b = 0; b < count; ++b) {
    points.push_back(block.point(left[b]));
    cohort.clocks[b] = cohort.clocks[left[b]];
  }
  cohort.clocks.resize(count, cohort.clocks.front());
  block.points = std::move(points);
  block.rows = count;
  block.width = block.uniform_width = width;
}

template <class T>
void Solve<T>::finish(Cohort<T>& cohort) {
  each(cohort, [&](Block<T>& block) {
    for (long b = 0; b < block.rows; ++b) write_end(cohort, block, b);
    if (!keep_) {
      block.slopes.clear();
      block.evaluations.clear();
    }
  });
  for (std::size_t i = 0; i < cohort.clocks.size(); ++i) {
    const long group = cohort.pointwise ? cohort.blocks.front().point(long(i)) : cohort.first_group;
    write_result(cohort.clocks[i], group);
  }
}

template class Solve<float>;
template class Solve<double>;

}  // namespace anode
