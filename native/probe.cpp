#include "probe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>

#include "elementwise.h"

namespace nb = nanobind;

namespace anode {

namespace {

using Address = std::uintptr_t;

template <class T>
Operand<T> array(Address address) {
  return {reinterpret_cast<const T*>(address), 0, false};
}

template <class T>
void unary(int f, Address a, long count, double p, double q, Address out, Address derivative, const char* name) {
  elementwise<T>(name).unary(Unary(f), array<T>(a), T(p), T(q), 1, count, reinterpret_cast<T*>(out),
                             reinterpret_cast<T*>(derivative), false);
}

template <class T>
void binary(int f, Address a, Address b, long count, Address out, const char* name) {
  elementwise<T>(name).binary(Binary(f), array<T>(a), array<T>(b), 1, count, reinterpret_cast<T*>(out), false);
}

/// An operand in double precision: address, stride and splat.
using Given = std::tuple<Address, long, bool>;

Operand<double> operand(const Given& given) {
  return {reinterpret_cast<const double*>(std::get<0>(given)), std::get<1>(given), std::get<2>(given)};
}

double* numbers(Address address) { return reinterpret_cast<double*>(address); }

/// The best instruction set has no name here.
const char* named(const std::string& instructions) { return instructions.empty() ? nullptr : instructions.c_str(); }

template <int N>
nb::list listed(const char* const (&names)[N]) {
  nb::list all;
  for (const char* name : names) all.append(name);
  return all;
}

void check(int f, int functions, long count) {
  if (f < 0 || f >= functions) throw std::invalid_argument("there is no such function");
  if (count % 64) throw std::invalid_argument("the number of elements has to be a multiple of 64");
}

/// What works on rows, in double precision.
void bind_rows(nb::module_& m) {
  m.def("unary_rows", [](int f, const Given& a, long rows, long width, Address out, Address derivative, bool add,
                         const std::string& name) {
    elementwise<double>(named(name))
        .unary(Unary(f), operand(a), 1, 20, rows, width, numbers(out), numbers(derivative), add);
  });
  m.def("binary_rows", [](int f, const Given& a, const Given& b, long rows, long width, Address out, bool add,
                          const std::string& name) {
    elementwise<double>(named(name)).binary(Binary(f), operand(a), operand(b), rows, width, numbers(out), add);
  });
  m.def("select_rows", [](const Given& c, const Given& a, const Given& b, long rows, long width, Address out, bool add,
                          const std::string& name) {
    elementwise<double>(named(name)).select(operand(c), operand(a), operand(b), rows, width, numbers(out), add);
  });
  m.def("join_rows", [](bool sum, Address a, long groups, long outer, long length, long inner, long width, Address out,
                        bool add, const std::string& name) {
    const Elementwise<double>& kernels = elementwise<double>(named(name));
    if (sum) return kernels.sum_rows(numbers(a), groups, outer, length, inner, width, numbers(out), add);
    kernels.largest_row(numbers(a), groups, outer, length, inner, width, numbers(out));
  });
  m.def("fold", [](const Given& a, const Given& b, long rows, long width, long narrow, Address out,
                   const std::string& name) {
    elementwise<double>(named(name)).fold(operand(a), operand(b), rows, width, narrow, numbers(out));
  });
  m.def("sum_points", [](Address a, long stride, long rows, long width, Address sums, long step,
                         const std::string& name) {
    elementwise<double>(named(name)).sum_points(numbers(a), stride, rows, width, numbers(sums), step);
  });
}

}  // namespace

void bind_probe(nb::module_& m) {
  bind_rows(m);
  m.attr("UNARY") = listed(kUnaryNames);
  m.attr("BINARY") = listed(kBinaryNames);
  m.def(
      "unary",
      [](int f, bool is_double, Address a, long count, double p, double q, Address out, Address derivative,
         const std::string& instructions) {
        check(f, std::size(kUnaryNames), count);
        (is_double ? unary<double> : unary<float>)(f, a, count, p, q, out, derivative, named(instructions));
      },
      nb::arg("name_index"), nb::arg("is_double"), nb::arg("a_address"), nb::arg("count"), nb::arg("p"), nb::arg("q"),
      nb::arg("out_address"), nb::arg("derivative_address"), nb::arg("instructions"));
  m.def(
      "binary",
      [](int f, bool is_double, Address a, Address b, long count, Address out, const std::string& instructions) {
        check(f, std::size(kBinaryNames), count);
        (is_double ? binary<double> : binary<float>)(f, a, b, count, out, named(instructions));
      },
      nb::arg("index"), nb::arg("is_double"), nb::arg("a"), nb::arg("b"), nb::arg("count"), nb::arg("out"),
      nb::arg("instructions"));
}

}  // namespace anode
