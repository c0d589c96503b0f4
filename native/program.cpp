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
Operand<T> Network<T>::operand(const Slot& slot, Bases bases, long width) const {
  if (slot.space == kScalar) return {scalars_ + slot.first, slot.step, true};
  return {bases[slot.space] + slot.first * width, slot.step * width, false};
}

template <class T>
void Network<T>::run(const Kernels<T>& kernels, const Instruction& op, Bases bases, long width,
                     const Sums<T>* sums) const {
  const Elementwise<T>& each = *kernels.elementwise;
  const auto place = [&](const Slot& slot) { return slot.space < 0 ? nullptr : bases[slot.space] + slot.first * width; };
  const auto in = [&](int i) { return operand(op.inputs[i], bases, width); };
  T* out = op.kind == Kind::points ? nullptr : place(op.out);
  switch (op.kind) {
    case Kind::unary:
      return each.unary(Unary(op.name), in(0), T(op.p), T(op.q), op.rows, width, out, place(op.derivative), op.add);
    case Kind::binary: return each.binary(Binary(op.name), in(0), in(1), op.rows, width, out, op.add);
    case Kind::select: return each.select(in(0), in(1), in(2), op.rows, width, out, op.add);
    case Kind::sum:
      return each.sum_rows(in(0).at, op.rows, op.outer, op.length, op.inner, width, out, op.add);
    case Kind::largest: return each.largest_row(in(0).at, op.rows, op.outer, op.length, op.inner, width, out);
    case Kind::affine:
      return kernels.affine(layers_[op.layer], op.activation, in(0).at, width, out, place(op.derivative));
    case Kind::pull:
      return kernels.pull(layers_[op.layer], op.activation, in(0).at, place(op.seen), width, out, op.add);
    case Kind::points:
      return each.sum_points(in(0).at, in(0).stride, op.rows, width, sums->scalars + op.out.first, op.inputs[1].step);
  }
}

template <class T>
void Network<T>::evaluate(const Kernels<T>& kernels, const Evaluation<T>& at, T* scratch, long width, T* slope) const {
  T* const bases[kSpaces] = {at.x, at.kept, scratch, nullptr, slope, nullptr, nullptr, nullptr};
  for (const Instruction& op : program_.forward) run(kernels, op, bases, width, nullptr);
}

template <class T>
void Network<T>::pull(const Kernels<T>& kernels, const Evaluation<T>& at, T* cotangents, T* loose, long width,
                      T* at_state, const Sums<T>& sums) const {
  T* const bases[kSpaces] = {at.x, at.kept, nullptr, nullptr, nullptr, cotangents, at_state, loose};
  for (const Instruction& op : program_.backward) run(kernels, op, bases, width, &sums);
}

template <class T>
void Network<T>::add_gradients(const Kernels<T>& kernels, int count, const Evaluation<T>* const* at,
                               T* const* cotangents, long width, const Sums<T>& sums) const {
  for (std::size_t l = 0; l < program_.maps.size(); ++l) {
    const Map& map = program_.maps[l];
    if (map.cotangent < 0) continue;  // nothing depends on it in a way that has a derivative
    const T *g[kMostSlopes], *x[kMostSlopes];
    for (int i = 0; i < count; ++i) {
      g[i] = cotangents[i] + map.cotangent * width;
      x[i] = (map.input.space == kState ? at[i]->x : at[i]->kept) + map.input.first * width;
    }
    kernels.sums(map.outputs, map.inputs, count, g, x, width, sums.maps[l]);
  }
}

template struct Sums<float>;
template struct Sums<double>;
template class Network<float>;
template class Network<double>;

}  // namespace anode
