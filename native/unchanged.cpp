#include "unchanged.h"

namespace nb = nanobind;

namespace anode {

namespace {

/// A flat list of triples: an owner, a name, and the value expected there.
template <class Read>
bool all_there(const nb::list& triples, const Read& read) {
  PyObject* const list = triples.ptr();
  const Py_ssize_t size = PyList_GET_SIZE(list);
  for (Py_ssize_t i = 0; i + 2 < size; i += 3)
    if (read(PyList_GET_ITEM(list, i), PyList_GET_ITEM(list, i + 1)) != PyList_GET_ITEM(list, i + 2)) return false;
  return true;
}

/// The value of a key, or `absent`. Null after an error.
PyObject* entry(PyObject* dict, PyObject* key, PyObject* absent) {
  PyObject* const found = PyDict_GetItemWithError(dict, key);
  return found || PyErr_Occurred() ? found : absent;
}

/// What a class itself defines under a name, without its bases.
PyObject* entry_of_class(PyObject* owner, PyObject* name, PyObject* absent) {
  PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(owner);
#if PY_VERSION_HEX >= 0x030C0000
  const nb::object space = nb::steal(PyType_GetDict(type));
  return entry(space.ptr(), name, absent);
#else
  return entry(type->tp_dict, name, absent);
#endif
}

PyObject* attribute(PyObject* owner, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(owner, name);
  Py_XDECREF(found);  // the owner still has it, and only its identity is compared
  return found;
}

bool same_elements(PyObject* container, PyObject* expected) {
  const nb::object each = nb::steal(PyObject_GetIter(container));
  if (!each.is_valid()) return false;
  const Py_ssize_t size = PyTuple_GET_SIZE(expected);
  for (Py_ssize_t i = 0; i < size; ++i) {
    const nb::object found = nb::steal(PyIter_Next(each.ptr()));
    if (found.ptr() != PyTuple_GET_ITEM(expected, i)) return false;
  }
  return !nb::steal(PyIter_Next(each.ptr())).is_valid() && !PyErr_Occurred();
}

bool same_values(PyObject* dict, PyObject* expected) {
  const Py_ssize_t size = PyTuple_GET_SIZE(expected);
  Py_ssize_t place = 0, i = 0;
  for (PyObject* value; PyDict_Next(dict, &place, nullptr, &value); ++i)
    if (i >= size || value != PyTuple_GET_ITEM(expected, i)) return false;
  return i == size;
}

bool same_size(PyObject* container, PyObject* expected) {
  return PyObject_Size(container) == PyLong_AsSsize_t(expected);
}

bool same_type(PyObject* object, PyObject* expected) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == expected;
}

/// A flat list of pairs: an object, and what is expected of it.
bool all_same(const nb::list& pairs, bool same(PyObject*, PyObject*)) {
  PyObject* const list = pairs.ptr();
  const Py_ssize_t size = PyList_GET_SIZE(list);
  for (Py_ssize_t i = 0; i + 1 < size; i += 2)
    if (!same(PyList_GET_ITEM(list, i), PyList_GET_ITEM(list, i + 1))) return false;
  return true;
}

}  // namespace

void bind_unchanged(nb::module_& m) {
  m.def(
      "unchanged",
      [](const nb::list& entries, const nb::list& attributes, const nb::list& classes, const nb::list& types,
         const nb::list& sizes, const nb::list& elements, const nb::list& values, nb::handle absent) {
        const auto in_dict = [&](PyObject* owner, PyObject* key) { return entry(owner, key, absent.ptr()); };
        const auto in_class = [&](PyObject* owner, PyObject* name) { return entry_of_class(owner, name, absent.ptr()); };
        const bool same = all_same(types, same_type) && all_same(sizes, same_size) && all_there(entries, in_dict) &&
                          all_there(classes, in_class) && all_there(attributes, attribute) &&
                          all_same(elements, same_elements) && all_same(values, same_values);
        if (!same) PyErr_Clear();  // what cannot be read any more has changed
        return same;
      },
      nb::arg("entries"), nb::arg("attributes"), nb::arg("classes"), nb::arg("types"), nb::arg("sizes"),
      nb::arg("elements"), nb::arg("values"), nb::arg("absent"));
}

}  // namespace anode
