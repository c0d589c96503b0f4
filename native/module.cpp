// What Python sees. Tensors cross as addresses: anode.engine.native checks them and keeps them alive.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>

#include "adjoint.h"
#include "conv_field.h"
#include "field.h"
#include "probe.h"
#include "solve.h"
#include "team.h"
#include "train.h"
#include "unchanged.h"

namespace nb = nanobind;
using namespace anode;

namespace {

using Address = std::uintptr_t;
using Addresses = std::vector<Address>;
using Row = std::vector<double>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

template <class T>
std::vector<T*> at(const Addresses& addresses) {
  std::vector<T*> pointers;
  for (Address address : addresses) pointers.push_back(at<T>(address));
  return pointers;
}

/// A method that other code can hold on to.
struct HeldMethod {
  std::shared_ptr<const Method> method;

  HeldMethod(int order, bool fsal, const Row& c, const std::vector<Row>& a, const Row& b, const Row& error,
             const std::vector<Row>& polynomials)
      : method(std::make_shared<Method>(order, fsal, c, a, b, error, polynomials)) {
    if (b.size() > 30) throw std::invalid_argument("a method may have at most 30 slopes");
  }
};

using Numbers = std::vector<long>;

/// A program that other code can hold on to. Everything is as anode/engine/program/layout.py writes it.
struct HeldProgram {
  std::shared_ptr<const Program> program;

  HeldProgram(int dim, int outputs, bool time, const Numbers& rows, const std::vector<Numbers>& forward,
              const std::vector<Row>& forward_numbers, const std::vector<Numbers>& backward,
              const std::vector<Row>& backward_numbers, const std::vector<Numbers>& maps,
              const std::vector<nb::bytes>& weights, const std::vector<nb::bytes>& biases,
              const Numbers& sizes, const Row& literals) {
    Program made{dim, outputs, time, rows.at(0), rows.at(1), rows.at(2), rows.at(3), rows.at(4), rows.at(5),
                 {},  {},      {},   sizes,      literals};
    for (std::size_t i = 0; i < forward.size(); ++i)
      made.forward.push_back(to_instruction(forward[i], forward_numbers.at(i)));
    for (std::size_t i = 0; i < backward.size(); ++i)
      made.backward.push_back(to_instruction(backward[i], backward_numbers.at(i)));
    for (std::size_t i = 0; i < maps.size(); ++i) {
      const Numbers& n = maps[i];
      Map map{int(n.at(0)), int(n.at(1)), int(n.at(2)), {int(n.at(3)), n.at(4), 1}, {int(n.at(5)), n.at(6), 1},
              integers(weights.at(i)), integers(biases.at(i)), {}, {}};
      map.pack();
      made.maps.push_back(std::move(map));
    }
    program = std::make_shared<const Program>(std::move(made));
  }

 private:
  static std::vector<int> integers(const nb::bytes& raw) {
    const int* first = static_cast<const int*>(raw.data());
    return {first, first + raw.size() / sizeof(int)};
  }

  static Instruction to_instruction(const Numbers& n, const Row& numbers) {
    const auto slot = [&](int i) { return Slot{int(n.at(i)), n.at(i + 1), n.at(i + 2)}; };
    const auto place = [&](int i) { return Slot{int(n.at(i)), n.at(i + 1), 1}; };
    return {Kind(n.at(0)), int(n.at(1)), n.at(2), n.at(3) != 0, place(4), place(6), {slot(8), slot(11), slot(14)},
            place(22), n.at(17), n.at(18), n.at(19), int(n.at(20)), Activation(n.at(21)), numbers.at(0),
            numbers.at(1)};
  }
};

template <class T>
Tensors<T> tensors(const Addresses& addresses, const std::vector<bool>& shared) {
  if (addresses.size() != shared.size())
    throw std::invalid_argument("parameters: takes one for each of the program's tensors");
  return {at<T>(addresses), shared};
}

Controller to_controller(const Row& numbers) {
  return {numbers.at(0), numbers.at(1), numbers.at(2), numbers.at(3), numbers.at(4), numbers.at(5)};
}

/// The thread that Python runs signal handlers on.
unsigned long main_thread = 0;

/// Asked again and again in a long call, on any thread and without the interpreter: looks now and then, on Python's
/// main thread if that made the call, whether there was a Ctrl-C, and from then on says so to all.
class Interrupt {
 public:
  bool operator()() {
    if (came_) return true;
    if (PyThread_get_thread_ident() != main_thread || Clock::now() < next_) return false;
    next_ = Clock::now() + kPause;
    nb::gil_scoped_acquire interpreter;
    if (PyErr_CheckSignals() != 0) came_ = true;
    return came_;
  }

  /// Raise in Python what came.
  void raise() const {
    if (!came_) return;
    nb::gil_scoped_acquire interpreter;
    throw nb::python_error();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{100};
  Clock::time_point next_ = Clock::now() + kPause;
  std::atomic<bool> came_{false};
};

/// Everything about a solve but its tensors, for solves of the same kind one after the other.
struct HeldTask {
  bool is_double;
  std::shared_ptr<const Method> method;
  std::shared_ptr<const Program> program;
  std::vector<bool> shared;
  Task task;
  Extent extent;
  bool keep;
  int threads;
  std::string instructions;

  HeldTask(bool is_double, const HeldMethod& method, const HeldProgram& program, const std::vector<bool>& shared,
           const Row& times, const std::vector<int>& wanted, const Row& knots, double rtol, double atol,
           double first_step, double min_step, double max_step, long max_steps, const Row& controller, bool grouped,
           bool keeps_non_finite, const std::vector<int>& components, int members, long rows, long group_rows,
           bool keep, int threads, const std::string& instructions)
      : is_double(is_double), method(method.method), program(program.program), shared(shared),
        task{times,    wanted,    knots,      rtol,      atol,    first_step,      min_step, max_step,
             max_steps, to_controller(controller), grouped, keeps_non_finite, components},
        extent{members, rows, group_rows}, keep(keep), threads(threads), instructions(instructions) {
    if (shared.size() != program.program->sizes.size())
      throw std::invalid_argument("shared: takes one for each of the program's tensors");
    if (knots.empty() && method.method->error.empty())
      throw std::invalid_argument("knots: takes the ends of steps for a method without an error estimate");
  }
};

/// Something in single or in double precision.
template <template <class> class X>
using Either = std::variant<X<float>, X<double>>;

template <class X>
struct ScalarOf;
template <template <class> class X, class T>
struct ScalarOf<X<T>> {
  using type = T;
};

/// What make(T()) returns for one of both.
template <template <class> class X, class Make>
Either<X> either(bool is_double, const Make& make) {
  if (is_double) return make(double());
  return make(float());
}

/// The precision of what std::visit passes on.
template <class X>
using Scalar = typename ScalarOf<std::decay_t<X>>::type;

const char* named(const std::string& instructions) { return instructions.empty() ? nullptr : instructions.c_str(); }

/// How a solve with one step size ended: how often the field was evaluated, the time reached, status and counts.
using End = std::tuple<long, double, long, long, long, long>;

/// A solve in either precision.
class AnySolve {
 public:
  AnySolve(const HeldTask& task, const Addresses& addresses)
      : shared_(task.shared), solve_(either<Solve>(task.is_double, [&](auto zero) {
          using T = decltype(zero);
          const Kernels<T>& best = kernels<T>(task.extent.rows / task.extent.members, named(task.instructions));
          return Solve<T>(task.method, task.task, task.program, tensors<const T>(addresses, task.shared), task.extent,
                          best, task.keep, task.threads);
        })) {
    for (std::size_t i = 0; i < shared_.size(); ++i)
      elements_.push_back(task.program->sizes[i] * (shared_[i] ? 1 : task.extent.members));
  }

  bool agrees(Address y0, Address slope, double tolerance) {
    return std::visit([&](auto& solve) {
      using T = Scalar<decltype(solve)>;
      return solve.agrees(at<T>(y0), at<T>(slope), tolerance);
    }, solve_);
  }

  long run(Address y0, const Addresses& outputs, Address last, Address t, const Addresses& counts) {
    const Groups groups{at<double>(t), at<std::int64_t>(counts.at(0)), at<std::int64_t>(counts.at(1)),
                        at<std::int64_t>(counts.at(2)), at<std::int64_t>(counts.at(3))};
    Interrupt interrupt;
    const long calls = std::visit([&](auto& solve) {
      using T = Scalar<decltype(solve)>;
      return solve.run(at<T>(y0), at<T>(outputs), at<T>(last), groups, [&] { return interrupt(); });
    }, solve_);
    interrupt.raise();
    return calls;
  }

  /// The same for a solve with one step size.
  End run_one(Address y0, const Addresses& outputs, Address last) {
    double t = 0;
    std::int64_t counts[4] = {};
    const auto address = [](const auto* place) { return reinterpret_cast<Address>(place); };
    const long calls = run(y0, outputs, last, address(&t),
                           {address(counts), address(counts + 1), address(counts + 2), address(counts + 3)});
    return {calls, t, counts[0], counts[1], counts[2], counts[3]};
  }

  /// Overwrites the gradients.
  long backward(const Addresses& of_outputs, Address of_last, Address at_y0, const Addresses& gradients) {
    Interrupt interrupt;
    const long calls = std::visit([&](auto& solve) {
      using T = Scalar<decltype(solve)>;
      for (std::size_t i = 0; i < elements_.size(); ++i)
        if (gradients.at(i)) std::fill_n(at<T>(gradients[i]), elements_[i], T(0));
      return solve.backward(at<const T>(of_outputs), at<const T>(of_last), at<T>(at_y0),
                            tensors<T>(gradients, shared_), [&] { return interrupt(); });
    }, solve_);
    interrupt.raise();
    return calls;
  }

 private:
  std::vector<bool> shared_;
  std::vector<long> elements_;  // of each of the program's tensors
  Either<Solve> solve_;
};

/// A field in either precision.
class AnyField {
 public:
  AnyField(bool is_double, const HeldProgram& program, const std::vector<bool>& shared, int members, long rows,
           const std::string& instructions, const Addresses& parameters)
      : shared_(shared), field_(either<Field>(is_double, [&](auto zero) {
          using T = decltype(zero);
          if (shared.size() != program.program->sizes.size())
            throw std::invalid_argument("shared: takes one for each of the program's tensors");
          return Field<T>(program.program, tensors<const T>(parameters, shared), members, rows,
                          kernels<T>(rows / members, named(instructions)));
        })) {}

  long kept_size(long times) const {
    return std::visit([&](auto& field) { return field.kept_size(times); }, field_);
  }

  void evaluate(Address t, long times, Address y, Address slope, Address kept, int threads) {
    std::visit([&](auto& field) {
      using T = Scalar<decltype(field)>;
      field.evaluate(at<T>(t), times, at<T>(y), at<T>(slope), at<T>(kept), threads);
    }, field_);
  }

  void pull(long times, Address kept, Address cotangent, Address at_y, int threads) {
    std::visit([&](auto& field) {
      using T = Scalar<decltype(field)>;
      field.pull(times, at<T>(kept), at<T>(cotangent), at<T>(at_y), threads);
    }, field_);
  }

  /// Solves the adjoint ODE from a state, which is overwritten. Everything but the parts is as in `task`.
  End solve_adjoint(const HeldTask& task, const Numbers& sizes, int normed, const std::vector<int>& gradients,
                     Address state) {
    std::vector<int> components = task.task.components;
    if (components.empty()) components.push_back(task.program->dim);
    const Parts parts{components, sizes, normed, gradients, shared_};
    if (gradients.size() != shared_.size())
      throw std::invalid_argument("gradients: takes a part for each of the program's tensors, or 0");
    Interrupt interrupt;
    const Clock clock = std::visit([&](auto& field) {
      using T = Scalar<decltype(field)>;
      Adjoint<T> adjoint(*task.method, task.task, parts, field, kernels<T>(sizes.at(0), named(task.instructions)),
                         task.threads);
      return adjoint.run(at<T>(state), [&] { return interrupt(); });
    }, field_);
    interrupt.raise();
    return {clock.nfe, clock.t, clock.status, clock.nfe, clock.accepted, clock.rejected};
  }

  void take(const Addresses& gradients) {
    std::visit([&](auto& field) { field.take(tensors<Scalar<decltype(field)>>(gradients, shared_)); }, field_);
  }

 private:
  std::vector<bool> shared_;
  Either<Field> field_;
};

/// A place and the distance from one member's to the next.
using Place = std::pair<Address, long>;

template <class T>
PerMember<T> per_member(const Place& place) {
  return {at<T>(place.first), place.second};
}

/// Training in either precision.
class AnyCourse {
 public:
  AnyCourse(bool is_double, const HeldMethod& method, double t1, const Row& knots, double rtol, double atol,
            long max_steps, const Row& controller, bool grouped, const HeldProgram& augment, const HeldProgram& field,
            const HeldProgram& head, int members, int loss, const Addresses& parameters, const Addresses& means,
            const Addresses& squares, const Addresses& gradients, const std::vector<bool>& shared, const Numbers& idle,
            const Row& lr, double weight_decay, const Row& adam) {
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const Task task{{0.0, t1}, {1},      knots,     rtol,                      atol,    nan,
                    0.0,       infinity, max_steps, to_controller(controller), grouped, false, {}};
    if (is_double) course_.emplace<Course<double>>();
    std::visit([&](auto& course) {
      using T = Scalar<decltype(course)>;
      course.method = method.method;
      course.task = task;
      course.augment = augment.program;
      course.field = field.program;
      course.head = head.program;
      course.members = members;
      course.loss = Loss(loss);
      course.parameters = at<T>(parameters);
      course.means = at<T>(means);
      course.squares = at<T>(squares);
      course.gradients = at<T>(gradients);
      course.shared = shared;
      course.idle.assign(idle.begin(), idle.end());
      course.adam = {lr, weight_decay, adam.at(0), adam.at(1), adam.at(2)};
    }, course_);
  }

  void train(const Place& x, const Place& y, const Place& weights, const Place& order, long points, long size,
             long first, long count, long steps, Address frozen, int threads, Address loss, Address accuracy,
             const Addresses& counts, Address failed_at, Address why) {
    const Log log{at<double>(loss),
                  at<double>(accuracy),
                  at<std::int64_t>(counts.at(0)),
                  at<std::int64_t>(counts.at(1)),
                  at<std::int64_t>(counts.at(2)),
                  at<std::int64_t>(counts.at(3))};
    std::visit([&](const auto& course) {
      using T = Scalar<decltype(course)>;
      const bool classes = course.loss == Loss::cross_entropy;
      const Batches<T> batches{per_member<const T>(x),
                               per_member<const T>(classes ? Place() : y),
                               per_member<const std::int64_t>(classes ? y : Place()),
                               per_member<const T>(weights),
                               per_member<const std::int64_t>(order),
                               points,
                               size,
                               first,
                               count};
      anode::train(course, batches, steps, at<std::uint8_t>(frozen), threads, log, at<std::int64_t>(failed_at),
                   at<std::int64_t>(why));
    }, course_);
  }

 private:
  Either<Course> course_;
};

}  // namespace

NB_MODULE(_native, m) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::set_leak_warnings(false);  // Python may end while a graph of torch still holds a solve
  m.def("instruction_sets", [] { return std::string(instruction_sets()); });
  m.def("borrow_threads", [](Address parallel) { borrow_threads(reinterpret_cast<Parallel>(parallel)); },
        nb::arg("parallel"));
  bind_probe(m);
  bind_unchanged(m);
  nb::class_<HeldMethod>(m, "Method")
      .def(nb::init<int, bool, Row, std::vector<Row>, Row, Row, std::vector<Row>>(), nb::arg("order"),
           nb::arg("fsal"), nb::arg("c"), nb::arg("a"), nb::arg("b"), nb::arg("error"), nb::arg("polynomials"));
  nb::class_<HeldProgram>(m, "Program")
      .def(nb::init<int, int, bool, Numbers, std::vector<Numbers>, std::vector<Row>, std::vector<Numbers>,
                    std::vector<Row>, std::vector<Numbers>, std::vector<nb::bytes>, std::vector<nb::bytes>, Numbers,
                    Row>(),
           nb::arg("dim"), nb::arg("outputs"), nb::arg("uses_time"), nb::arg("rows"), nb::arg("forward"),
           nb::arg("forward_numbers"), nb::arg("backward"), nb::arg("backward_numbers"), nb::arg("layers"),
           nb::arg("weights"), nb::arg("biases"), nb::arg("sizes"), nb::arg("literals"));
  nb::class_<HeldTask>(m, "Task").def(
      nb::init<bool, const HeldMethod&, const HeldProgram&, std::vector<bool>, Row, std::vector<int>, Row, double,
               double, double, double, double, long, Row, bool, bool, std::vector<int>, int, long, long, bool, int,
               std::string>(),
      nb::arg("is_double"), nb::arg("method"), nb::arg("program"), nb::arg("shared"), nb::arg("times"),
      nb::arg("wanted"), nb::arg("knots"), nb::arg("rtol"), nb::arg("atol"), nb::arg("first_step"),
      nb::arg("min_step"), nb::arg("max_step"), nb::arg("max_steps"), nb::arg("controller"), nb::arg("grouped"),
      nb::arg("keeps_non_finite"), nb::arg("components"), nb::arg("members"), nb::arg("rows"), nb::arg("group_rows"),
      nb::arg("keep"), nb::arg("threads"), nb::arg("instructions"));
  nb::class_<AnySolve>(m, "Solve")
      .def(nb::init<const HeldTask&, Addresses>(), nb::arg("task"), nb::arg("parameters"))
      .def("agrees", &AnySolve::agrees, nb::arg("y0"), nb::arg("slope"), nb::arg("tolerance"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("run", &AnySolve::run, nb::arg("y0"), nb::arg("outputs"), nb::arg("last"), nb::arg("t"),
           nb::arg("counts"), nb::call_guard<nb::gil_scoped_release>())
      .def("run_one", &AnySolve::run_one, nb::arg("y0"), nb::arg("outputs"), nb::arg("last"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("backward", &AnySolve::backward, nb::arg("of_outputs"), nb::arg("of_last"), nb::arg("at_y0"),
           nb::arg("gradients"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<AnyField>(m, "Field")
      .def(nb::init<bool, const HeldProgram&, std::vector<bool>, int, long, std::string, Addresses>(),
           nb::arg("is_double"), nb::arg("program"), nb::arg("shared"), nb::arg("members"), nb::arg("rows"),
           nb::arg("instructions"), nb::arg("parameters"))
      .def("kept_size", &AnyField::kept_size, nb::arg("times"))
      .def("evaluate", &AnyField::evaluate, nb::arg("t"), nb::arg("times"), nb::arg("y"), nb::arg("slope"),
           nb::arg("kept"), nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>())
      .def("pull", &AnyField::pull, nb::arg("times"), nb::arg("kept"), nb::arg("cotangent"), nb::arg("at_y"),
           nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>())
      .def("take", &AnyField::take, nb::arg("gradients"), nb::call_guard<nb::gil_scoped_release>())
      .def("solve_adjoint", &AnyField::solve_adjoint, nb::arg("task"), nb::arg("sizes"), nb::arg("normed"),
           nb::arg("gradients"), nb::arg("state"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<ConvField>(m, "ConvField")
      .def("__init__",
           [](ConvField* self, int inputs, int outputs, int filters, int activation, bool time,
              const Addresses& parameters, const std::string& instructions) {
             new (self) ConvField(inputs, outputs, filters, Activation(activation), time, at<const float>(parameters),
                                  named(instructions));
           },
           nb::arg("inputs"), nb::arg("outputs"), nb::arg("filters"), nb::arg("activation"), nb::arg("time"),
           nb::arg("parameters"), nb::arg("instructions"))
      .def_prop_ro("stride", &ConvField::stride)
      .def("evaluate",
           [](const ConvField& self, Address t, bool each, Address x, long count, long height, long width,
              Address slope, Address kept, int threads) {
             self.evaluate({at<const float>(t), each}, at<const float>(x), {count, height, width}, at<float>(slope),
                           at<float>(kept), threads);
           },
           nb::arg("t"), nb::arg("each"), nb::arg("x"), nb::arg("count"), nb::arg("height"), nb::arg("width"),
           nb::arg("slope"), nb::arg("kept"), nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>())
      .def("pull",
           [](ConvField& self, Address t, bool each, Address x, long count, long height, long width, Address kept,
              Address cotangent, Address pulled, int threads) {
             self.pull({at<const float>(t), each}, at<const float>(x), at<const float>(kept),
                       at<const float>(cotangent), {count, height, width}, at<float>(pulled), threads);
           },
           nb::arg("t"), nb::arg("each"), nb::arg("x"), nb::arg("count"), nb::arg("height"), nb::arg("width"),
           nb::arg("kept"), nb::arg("cotangent"), nb::arg("pulled"), nb::arg("threads"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("take", [](ConvField& self, const Addresses& gradients) { self.take(at<float>(gradients)); },
           nb::arg("gradients"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<AnyCourse>(m, "Course")
      .def(nb::init<bool, const HeldMethod&, double, Row, double, double, long, Row, bool, const HeldProgram&,
                    const HeldProgram&, const HeldProgram&, int, int, Addresses, Addresses, Addresses, Addresses,
                    std::vector<bool>, Numbers, Row, double, Row>(),
           nb::arg("is_double"), nb::arg("method"), nb::arg("t1"), nb::arg("knots"), nb::arg("rtol"), nb::arg("atol"),
           nb::arg("max_steps"), nb::arg("controller"), nb::arg("grouped"), nb::arg("augment"),
           nb::arg("field"), nb::arg("head"), nb::arg("members"), nb::arg("loss"),
           nb::arg("parameters"), nb::arg("means"), nb::arg("squares"), nb::arg("gradients"), nb::arg("shared"),
           nb::arg("idle"), nb::arg("lr"), nb::arg("weight_decay"), nb::arg("adam"))
      .def("train", &AnyCourse::train, nb::arg("x"), nb::arg("y"), nb::arg("weights"), nb::arg("order"),
           nb::arg("points"), nb::arg("size"), nb::arg("first"), nb::arg("count"), nb::arg("steps"), nb::arg("frozen"),
           nb::arg("threads"), nb::arg("loss"), nb::arg("accuracy"), nb::arg("counts"), nb::arg("failed_at"),
           nb::arg("why"),
           nb::call_guard<nb::gil_scoped_release>());
}
