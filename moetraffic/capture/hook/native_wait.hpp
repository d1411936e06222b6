// A method in place of Work.wait that notes when the wait returned, without entering a
// Python frame: a callable object that binds as functions do.

#pragma once

#include <Python.h>

#include <cstddef>

#include <structmember.h>

namespace moetraffic {

struct Wait {
  PyObject_HEAD
  PyObject* original;  // the method that waits
  PyObject* ended;     // ended(work), for works that Python tracks
  vectorcallfunc call;
};

// Notes the end of this thread's synchronous call; false where the work is not its own.
using Waited = bool (*)(PyObject* work);
inline Waited waited_here = nullptr;

inline PyObject* wait_call(PyObject* self, PyObject* const* given, size_t count,
                           PyObject* names) {
  auto* wait = reinterpret_cast<Wait*>(self);
  PyObject* result = PyObject_Vectorcall(wait->original, given, count, names);
  if (result == nullptr || PyVectorcall_NARGS(count) < 1 || waited_here(given[0])) {
    return result;
  }
  PyObject* told = PyObject_CallOneArg(wait->ended, given[0]);
  if (told == nullptr) {
    PyErr_WriteUnraisable(wait->ended);  // no error may reach the training
  }
  Py_XDECREF(told);
  return result;
}

inline PyObject* wait_bound(PyObject* self, PyObject* work, PyObject*) {
  if (work == nullptr || work == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, work);
}

inline int wait_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* wait = reinterpret_cast<Wait*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(wait->original);
  Py_VISIT(wait->ended);
  return 0;
}

inline int wait_clear(PyObject* self) {
  auto* wait = reinterpret_cast<Wait*>(self);
  Py_CLEAR(wait->original);
  Py_CLEAR(wait->ended);
  return 0;
}

inline void wait_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  wait_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyTypeObject* wait_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wait, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(wait_bound)},
      {Py_tp_traverse, reinterpret_cast<void*>(wait_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(wait_clear)},
      {Py_tp_dealloc, reinterpret_cast<void*>(wait_dealloc)},
      {Py_tp_members, members},
      {0, nullptr}};
  static PyType_Spec spec = {
      "moetraffic.Wait", sizeof(Wait), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
          Py_TPFLAGS_METHOD_DESCRIPTOR,
      slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);
}

// A new reference, or nullptr with an exception set.
inline PyObject* new_wait(PyObject* original, PyObject* ended, Waited waited) {
  PyTypeObject* type = wait_type();
  if (type == nullptr) return nullptr;
  auto* wait = reinterpret_cast<Wait*>(type->tp_alloc(type, 0));
  if (wait == nullptr) return nullptr;
  waited_here = waited;
  wait->original = Py_NewRef(original);
  wait->ended = Py_NewRef(ended);
  wait->call = wait_call;
  return reinterpret_cast<PyObject*>(wait);
}

}  // namespace moetraffic
