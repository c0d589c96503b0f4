#include "program.h"

namespace anode {

void Map::pack() {
  const auto packed = [&](int rows, int columns, auto place) {
    std::vector<int> places;
    for (int tile = 0; tile < rows; tile += kTile)
      for (int j = 0; j < columns; ++j)
        for (int i = tile; i < tile + kTile; ++i) places.push_back(i < rows ? place(i, j) : -1);
    return places;
  };
  forward = packed(outputs, inputs, [&](int i, int j) { return weight[i * inputs + j]; });
  backward = packed(inputs - skipped, outputs, [&](int i, int j) { return weight[j * inputs + skipped + i]; });
}

template <class T>
Sums<T>::Sums(const Program& program, Arena& arena) {
  const auto zeros = [&](long count) {
    T* place = arena.take<T>(count);
    std::memset(place, 0, count * sizeof(T));
    return place;
  };
  scalars = zeros(program.elements() + long(program.literals.size()));
  for (const Map& map : program.maps) maps.push_back({zeros(long(map.outputs) * map.inputs), zeros(map.outputs)});
}

template <class T>
void Sums<T>::add_to(const Tensors<T>& total, const Program& program, int member) {
  for (std::size_t l = 0; l < maps.size(); ++l) {
    const Map& map = program.maps[l];
    for (std::size_t i = 0; i < map.weight.size(); ++i) scalars[map.weight[i]] += maps[l].weight[i];
    for (std::size_t i = 0; i < map.bias.size(); ++i) scalars[map.bias[i]] += maps[l].bias[i];
  }
  const T* from = scalars;
  for (std::size_t i = 0; i < program.sizes.size(); from += program.sizes[i++]) {
    if (!total.first[i]) continue;
    T* to = total.of(i, member, program);
    for (long j = 0; j < program.sizes[i]; ++j) to[j] += from[j];
  }
}

template <class T>
Network<T>::Network(const Program& program, const Tensors<const T>& tensors, int member, Arena& arena)
    : program_(program) {
  T* at = scalars_ = arena.take<T>(program.elements() + program.literals.size());
  for (std::size_t i = 0; i < program.sizes.size(); at += program.sizes[i++])
    std::memcpy(at, tensors.of(i, member, program), program.sizes[i] * sizeof(T));
  for (double literal : program.literals) *at++ = T(literal);
  const auto gather = [&](const std::vector<int>& places) {
    T* to = arena.take<T>(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) to[i] = places[i] < 0 ? T(0) : scalars_[places[i]];
    return to;
  };
  for (const Map& map : program.maps)
    layers_.push_back({map.inputs, map.outputs, map.skipped, gather(map.forward), gather(map.backward), gather(map.bias)});
}

template <class T>
T* Network<T>::place(const Slot& slot, Bases bases, Width width) const {
  if (slot.space < 0) return nullptr;
  return bases[slot.space] + slot.first * (is_uniform(slot.space) ? width.uniform : width.points);
}

/// `spread`: whether an operation on all points reads it, to which a uniform row is a number.
template <class T>
Operand<T> Network<T>::operand(const Slot& slot, Bases bases, Width width, bool spread) const {
  if (slot.space == kScalar) return {scalars_ + slot.first, slot.step, true};
  const long distance = is_uniform(slot.space) ? width.uniform : width.points;
  const bool splat = spread && is_uniform(slot.space) && width.uniform < width.points;
  return {place(slot, bases, width), slot.step * distance, splat};
}

template <class T>
void Network<T>::run(const Kernels<T>& kernels, const Instruction& op, Bases bases, Width widths, bool pulls,
                     const Sums<T>* sums) const {
  const Elementwise<T>& each = *kernels.elementwise;
  const bool folds = op.kind == Kind::fold;
  const bool narrow = !folds && is_uniform(op.kind == Kind::points ? op.inputs[0].space : op.out.space);
  const long width = narrow ? widths.uniform : widths.points;
  const auto in = [&](int i) { return operand(op.inputs[i], bases, widths, !narrow); };
  T* out = op.kind == Kind::points ? nullptr : place(op.out, bases, widths);
  T* derivative = pulls ? place(op.derivative, bases, widths) : nullptr;
  switch (op.kind) {
    case Kind::unary:
      return each.unary(Unary(op.name), in(0), T(op.p), T(op.q), op.rows, width, out, derivative, op.add);
    case Kind::binary: return each.binary(Binary(op.name), in(0), in(1), op.rows, width, out, op.add);
    case Kind::select: return each.select(in(0), in(1), in(2), op.rows, width, out, op.add);
    case Kind::sum:
      return each.sum_rows(in(0).at, op.rows, op.outer, op.length, op.inner, width, out, op.add);
    case Kind::largest: return each.largest_row(in(0).at, op.rows, op.outer, op.length, op.inner, width, out);
    case Kind::affine:
      return kernels.affine(layers_[op.layer], op.activation, in(0).at, width, out, derivative);
    case Kind::pull:
      return kernels.pull(layers_[op.layer], op.activation, in(0).at, place(op.seen, bases, widths), width, out, op.add);
    case Kind::points:
      return each.sum_points(in(0).at, in(0).stride, op.rows, width, sums->scalars + op.out.first, op.inputs[1].step);
    case Kind::fold: {
      const T one = 1;
      const Operand<T> factor = op.inputs[1].space < 0 ? Operand<T>{&one, 0, true} : in(1);
      return each.fold(in(0), factor, op.rows, width, widths.uniform, out);
    }
  }
}

template <class T>
void Network<T>::evaluate(const Kernels<T>& kernels, const Evaluation<T>& at, T* scratch, Width width, T* slope,
                          bool pulls) const {
  T* const uniform = at.kept + program_.kept * width.points;
  T* const bases[kSpaces] = {at.x, at.kept, scratch, nullptr, slope, nullptr, nullptr, nullptr, uniform, nullptr};
  for (const Instruction& op : program_.forward) run(kernels, op, bases, width, pulls, nullptr);
}

template <class T>
void Network<T>::pull(const Kernels<T>& kernels, const Evaluation<T>& at, T* cotangents, T* loose, Width width,
                      T* at_state, const Sums<T>& sums) const {
  T* const bases[kSpaces] = {at.x,       at.kept,  nullptr, nullptr, nullptr, cotangents,
                             at_state, loose,    at.kept + program_.kept * width.points,
                             cotangents + program_.cotangents * width.points};
  for (const Instruction& op : program_.backward) run(kernels, op, bases, width, true, &sums);
}

template <class T>
void Network<T>::add_gradients(const Kernels<T>& kernels, int count, const Evaluation<T>* const* at,
                               T* const* cotangents, Width width, const Sums<T>& sums) const {
  for (std::size_t l = 0; l < program_.maps.size(); ++l) {
    const Map& map = program_.maps[l];
    if (map.cotangent.space < 0) continue;  // nothing depends on it in a way that has a derivative
    const T *g[kMostSlopes], *x[kMostSlopes];
    for (int i = 0; i < count; ++i) {
      T* const kept = at[i]->kept;
      T* const bases[kSpaces] = {at[i]->x, kept,    nullptr, nullptr, nullptr, cotangents[i],
                                 nullptr,  nullptr, kept + program_.kept * width.points,
                                 cotangents[i] + program_.cotangents * width.points};
      g[i] = place(map.cotangent, bases, width);
      x[i] = place(map.input, bases, width);
    }
    const long entries = is_uniform(map.cotangent.space) ? width.uniform : width.points;
    kernels.sums(map.outputs, map.inputs, count, g, x, entries, sums.maps[l]);
  }
}

template struct Sums<float>;
template struct Sums<double>;
template class Network<float>;
template class Network<double>;

}  // namespace anode
