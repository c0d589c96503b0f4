#include "field.h"

#include <algorithm>

#include "blocks.h"
#include "team.h"

namespace anode {

template <class T>
Field<T>::Field(std::shared_ptr<const Program> program, const Tensors<const T>& tensors, int members, long rows,
                const Kernels<T>& kernels)
    : program_(std::move(program)), members_(members), rows_(rows), kernels_(kernels) {
  const long own = rows / members, dim = program_->dim, most = kBlockRows + kernels.lanes;
  for (int member = 0; member < members; ++member) {
    networks_.emplace_back(*program_, tensors, member, *arena_);
    const std::vector<Piece> pieces = cut_rows(member * own, own, kernels.lanes);
    const long count = long(pieces.size()), parts = std::min<long>(count, strands_of_each(members));
    for (long part = 0; part < parts; ++part) {
      Strand strand{member, blocks_.size(), 0, Loan(), nullptr, nullptr, nullptr, nullptr, nullptr, {}};
      const Range range = range_of(part, parts, count);
      for (long i = range.first; i < range.last; ++i) {
        Block block{member, int(strands_.size()), pieces[i].first, pieces[i].rows, pieces[i].width, {}};
        for (int mode : {0, 1}) {
          block.at[mode] = sizes_[mode];
          sizes_[mode] += (dim + 1) * block.width +
                          program_->kept_size({block.width, mode ? block.width : long(kernels.lanes)});
        }
        blocks_.push_back(block);
      }
      strand.last = blocks_.size();
      Arena& arena = *strand.arena;
      strand.kept = arena.take<T>((dim + 1) * most + program_->kept_size({most, most}));
      strand.scratch = arena.take<T>(program_->scratch * most);
      strand.result = arena.take<T>(std::max(program_->dim, program_->outputs) * most);
      strand.cotangents = arena.take<T>(program_->cotangents_size({most, most}));
      strand.loose = arena.take<T>(program_->loose * most);
      strand.mark = arena.mark();
      strands_.push_back(std::move(strand));
    }
  }
}

/// Whether there may be several times within a block.
template <class T>
bool Field<T>::differ(long times) const {
  return times > 1 && times != members_;
}

template <class T>
Width Field<T>::widths(const Block& block, long times) const {
  return {block.width, differ(times) ? block.width : kernels_.lanes};
}

template <class T>
long Field<T>::kept_size(long times) const {
  return sizes_[differ(times)];
}

/// Where a block's evaluation is written down: the state with the time in front of it, and what the pullback needs.
template <class T>
Evaluation<T> Field<T>::evaluation(const Block& block, long times, T* kept) const {
  T* const place = kept ? kept + block.at[differ(times)] : strands_[block.strand].kept;
  return {place + block.width, place + (program_->dim + 1) * block.width};
}

template <class T>
void Field<T>::each(int threads, const std::function<void(const Block&, Strand&)>& piece) {
  const auto work = [&](int i) {
    for (std::size_t n = strands_[i].first; n < strands_[i].last; ++n) piece(blocks_[n], strands_[i]);
  };
  const auto share_strands = rows_ < kLargeRows ? share : share_borrowed;
  if (strands_.size() == 1) return work(0);
  share_strands(int(strands_.size()), threads, work);
}

/// A block as rows [rows][features].
template <class T>
void Field<T>::store(const Block& block, const T* from, long features, T* rows) const {
  for (long b = 0; b < block.rows; ++b)
    for (long i = 0; i < features; ++i) rows[(block.first + b) * features + i] = from[i * block.width + b];
}

template <class T>
void Field<T>::evaluate(const T* t, long times, const T* y, T* slope, T* kept, int threads) {
  const long dim = program_->dim, part = rows_ / times;
  each(threads, [&](const Block& block, Strand& strand) {
    const Evaluation<T> at = evaluation(block, times, kept);
    load_rows(y + block.first * dim, block.rows, dim, block.width, at.x);
    T* const when = times_of(at.x, block.width);
    for (long b = 0; b < block.width && program_->time; ++b)
      when[b] = t[times == 1 ? 0 : (block.first + std::min(b, block.rows - 1)) / part];
    networks_[block.member].evaluate(kernels_, at, strand.scratch, widths(block, times), strand.result, kept != nullptr);
    store(block, strand.result, program_->outputs, slope);
  });
}

template <class T>
void Field<T>::pull(long times, T* kept, const T* cotangent, T* at_y, int threads) {
  if (sums_.empty())
    for (Strand& strand : strands_) sums_.emplace_back(*program_, *strand.arena);
  const long outputs = program_->outputs;
  each(threads, [&](const Block& block, Strand& strand) {
    const Evaluation<T> at = evaluation(block, times, kept);
    const Evaluation<T>* const evaluations[] = {&at};
    T* const cotangents[] = {strand.cotangents};
    const Network<T>& network = networks_[block.member];
    load_cotangent(cotangent + block.first * outputs, block.rows, outputs, block.width, strand.cotangents);
    network.pull(kernels_, at, strand.cotangents, strand.loose, widths(block, times), strand.result,
                 sums_[block.strand]);
    network.add_gradients(kernels_, 1, evaluations, cotangents, widths(block, times), sums_[block.strand]);
    store(block, strand.result, program_->dim, at_y);
  });
}

template <class T>
void Field<T>::take(const Tensors<T>& gradients) {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].add_to(gradients, *program_, strands_[i].member);
    strands_[i].arena->rewind(strands_[i].mark);
  }
  sums_.clear();
}

template class Field<float>;
template class Field<double>;

}  // namespace anode
