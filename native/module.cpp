// What Python sees. Tensors cross as addresses: anode.ode.native checks them and keeps them alive.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "conv_field.h"
#include "solve.h"
#include "team.h"
#include "train.h"

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

/// Parameters in the order of MLPField.parameters(): time, weights, biases.
template <class T>
Parameters<T> parameters(const Shape& shape, const Addresses& addresses) {
  Parameters<T> found;
  std::size_t next = 0;
  if (shape.time) found.time = at<T>(addresses.at(next++));
  for (int l = 0; l < shape.layers(); ++l) found.weights.push_back(at<T>(addresses.at(next++)));
  for (int l = 0; l < shape.layers(); ++l) found.biases.push_back(at<T>(addresses.at(next++)));
  return found;
}

std::vector<Activation> to_activations(const std::vector<int>& numbers) {
  std::vector<Activation> found;
  for (int number : numbers) found.push_back(Activation(number));
  return found;
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

/// A solve in either precision.
class AnySolve {
 public:
  AnySolve(bool is_double, const HeldMethod& method, const Row& times, const std::vector<int>& wanted,
           const Row& knots, double rtol, double atol, double first_step, double min_step, double max_step,
           long max_steps, const Row& controller, bool grouped, const std::vector<int>& sizes,
           const std::vector<int>& activations, bool time, const Addresses& weights, int members, long rows,
           long group_rows, bool keep, int threads, const std::string& instructions)
      : shape_{sizes, to_activations(activations), time}, is_double_(is_double) {
    Task task{times,    wanted,   knots,     rtol,                      atol,   first_step,
              min_step, max_step, max_steps, to_controller(controller), grouped};
    const Extent extent{members, rows, group_rows};
    const char* name = instructions.empty() ? nullptr : instructions.c_str();
    if (is_double)
      for_double_ = std::make_unique<Solve<double>>(method.method, std::move(task), shape_,
                                                    parameters<const double>(shape_, weights), extent,
                                                    kernels<double>(name), keep, threads);
    else
      for_float_ = std::make_unique<Solve<float>>(method.method, std::move(task), shape_,
                                                  parameters<const float>(shape_, weights), extent,
                                                  kernels<float>(name), keep, threads);
  }

  long run(Address y0, const Addresses& outputs, Address last, Address t, const Addresses& counts) {
    const Groups groups{at<double>(t), at<std::int64_t>(counts.at(0)), at<std::int64_t>(counts.at(1)),
                        at<std::int64_t>(counts.at(2)), at<std::int64_t>(counts.at(3))};
    Interrupt interrupt;
    const auto is_stopped = [&] { return interrupt(); };
    const long calls =
        is_double_ ? for_double_->run(at<double>(y0), at<double>(outputs), at<double>(last), groups, is_stopped)
                   : for_float_->run(at<float>(y0), at<float>(outputs), at<float>(last), groups, is_stopped);
    interrupt.raise();
    return calls;
  }

  long backward(const Addresses& of_outputs, Address of_last, Address at_y0, const Addresses& gradients) {
    Interrupt interrupt;
    const auto is_stopped = [&] { return interrupt(); };
    const long calls =
        is_double_ ? for_double_->backward(at<const double>(of_outputs), at<const double>(of_last), at<double>(at_y0),
                                           parameters<double>(shape_, gradients), is_stopped)
                   : for_float_->backward(at<const float>(of_outputs), at<const float>(of_last), at<float>(at_y0),
                                          parameters<float>(shape_, gradients), is_stopped);
    interrupt.raise();
    return calls;
  }

 private:
  Shape shape_;
  bool is_double_;
  std::unique_ptr<Solve<float>> for_float_;
  std::unique_ptr<Solve<double>> for_double_;
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
            long max_steps, const Row& controller, bool grouped, const std::vector<int>& sizes,
            const std::vector<int>& activations, bool time, int members, int inputs, int outputs, int loss,
            const Place& x, const Place& y, const Place& weights,
            const Addresses& parameters, const Addresses& means, const Addresses& squares, const Row& lr,
            double weight_decay, const Row& adam)
      : is_double_(is_double) {
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const Task task{{0.0, t1}, {1},      knots,     rtol,                      atol,   nan,
                    0.0,       infinity, max_steps, to_controller(controller), grouped};
    const Shape shape{sizes, to_activations(activations), time};
    const auto fill = [&](auto& course) {
      using T = std::remove_reference_t<decltype(*course.means.front())>;
      course.method = method.method;
      course.task = task;
      course.shape = shape;
      course.members = members;
      course.inputs = inputs;
      course.outputs = outputs;
      course.loss = Loss(loss);
      course.x = per_member<const T>(x);
      const bool classes = course.loss == Loss::cross_entropy;
      course.targets = per_member<const T>(classes ? Place() : y);
      course.labels = per_member<const std::int64_t>(classes ? y : Place());
      course.weights = per_member<const T>(weights);
      course.parameters = at<T>(parameters);
      course.means = at<T>(means);
      course.squares = at<T>(squares);
      course.adam = {lr, weight_decay, adam.at(0), adam.at(1), adam.at(2)};
    };
    if (is_double)
      fill(for_double_);
    else
      fill(for_float_);
  }

  void train(const Place& order, long points, long size, long first, long count, long steps, Address frozen,
             int threads, Address loss, Address accuracy, const Addresses& counts, Address failed_at, Address why) {
    const Batches batches{per_member<const std::int64_t>(order), points, size, first, count};
    const Log log{at<double>(loss),
                  at<double>(accuracy),
                  at<std::int64_t>(counts.at(0)),
                  at<std::int64_t>(counts.at(1)),
                  at<std::int64_t>(counts.at(2)),
                  at<std::int64_t>(counts.at(3))};
    const auto go = [&](const auto& course) {
      anode::train(course, batches, steps, at<std::uint8_t>(frozen), threads, log, at<std::int64_t>(failed_at),
                   at<std::int64_t>(why));
    };
    if (is_double_)
      go(for_double_);
    else
      go(for_float_);
  }

 private:
  bool is_double_;
  Course<float> for_float_{};
  Course<double> for_double_{};
};

}  // namespace

NB_MODULE(_native, m) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::set_leak_warnings(false);  // Python may end while a graph of torch still holds a solve
  m.def("instruction_sets", [] { return std::string(instruction_sets()); });
  m.def("borrow_threads", [](Address parallel) { borrow_threads(reinterpret_cast<Parallel>(parallel)); },
        nb::arg("parallel"));
  nb::class_<HeldMethod>(m, "Method")
      .def(nb::init<int, bool, Row, std::vector<Row>, Row, Row, std::vector<Row>>(), nb::arg("order"),
           nb::arg("fsal"), nb::arg("c"), nb::arg("a"), nb::arg("b"), nb::arg("error"), nb::arg("polynomials"));
  nb::class_<AnySolve>(m, "Solve")
      .def(nb::init<bool, const HeldMethod&, Row, std::vector<int>, Row, double, double, double, double, double, long,
                    Row, bool, std::vector<int>, std::vector<int>, bool, Addresses, int, long, long, bool, int,
                    std::string>(),
           nb::arg("is_double"), nb::arg("method"), nb::arg("times"), nb::arg("wanted"), nb::arg("knots"),
           nb::arg("rtol"), nb::arg("atol"), nb::arg("first_step"), nb::arg("min_step"), nb::arg("max_step"),
           nb::arg("max_steps"), nb::arg("controller"), nb::arg("grouped"), nb::arg("sizes"), nb::arg("activations"),
           nb::arg("time"), nb::arg("parameters"), nb::arg("members"), nb::arg("rows"), nb::arg("group_rows"),
           nb::arg("keep"), nb::arg("threads"), nb::arg("instructions"))
      .def("run", &AnySolve::run, nb::arg("y0"), nb::arg("outputs"), nb::arg("last"), nb::arg("t"),
           nb::arg("counts"), nb::call_guard<nb::gil_scoped_release>())
      .def("backward", &AnySolve::backward, nb::arg("of_outputs"), nb::arg("of_last"), nb::arg("at_y0"),
           nb::arg("gradients"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<ConvField>(m, "ConvField")
      .def("__init__",
           [](ConvField* self, int channels, int filters, int activation, bool time, const Addresses& parameters,
              const std::string& instructions) {
             new (self) ConvField(channels, filters, Activation(activation), time, at<const float>(parameters),
                                  instructions.empty() ? nullptr : instructions.c_str());
           },
           nb::arg("channels"), nb::arg("filters"), nb::arg("activation"), nb::arg("time"), nb::arg("parameters"),
           nb::arg("instructions"))
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
      .def(nb::init<bool, const HeldMethod&, double, Row, double, double, long, Row, bool, std::vector<int>,
                    std::vector<int>, bool, int, int, int, int, Place, Place, Place, Addresses, Addresses, Addresses,
                    Row, double, Row>(),
           nb::arg("is_double"), nb::arg("method"), nb::arg("t1"), nb::arg("knots"), nb::arg("rtol"), nb::arg("atol"),
           nb::arg("max_steps"), nb::arg("controller"), nb::arg("grouped"), nb::arg("sizes"), nb::arg("activations"),
           nb::arg("time"),
           nb::arg("members"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("loss"), nb::arg("x"), nb::arg("y"),
           nb::arg("weights"), nb::arg("parameters"), nb::arg("means"), nb::arg("squares"), nb::arg("lr"),
           nb::arg("weight_decay"), nb::arg("adam"))
      .def("train", &AnyCourse::train, nb::arg("order"), nb::arg("points"), nb::arg("size"), nb::arg("first"),
           nb::arg("count"), nb::arg("steps"), nb::arg("frozen"), nb::arg("threads"), nb::arg("loss"),
           nb::arg("accuracy"), nb::arg("counts"), nb::arg("failed_at"), nb::arg("why"),
           nb::call_guard<nb::gil_scoped_release>());
}
