// The compiled hook: kernels that record collectives without Python's interpreter.
//
// The functions of this module are described at its end, the records in log_format.py.
// Only torch is linked.  Kernels are boxed, so that one serves every operator.

#include <pybind11/pybind11.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace torch::jit {
// declared here because its header takes a minute to compile
py::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace {

using Words = std::vector<int64_t>;
using Part = c10::ArrayRef<int64_t>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Event = std::shared_ptr<c10::Event>;
using Numbers = std::unordered_map<std::string, int64_t>;

constexpr int64_t CALL = 1, END = 2, RAISED = 3;  // kinds of records
constexpr int64_t ALL_TO_ALL = 0;                 // index of the operation
constexpr int64_t CALL_HEAD = 21;                 // words of a call before its splits
constexpr size_t MOST_WORDS = size_t{2} << 20;    // 16 MB in the queue
constexpr int64_t REBASE_NS = 5'000'000'000;      // a float32 in ms has 1 us up to 16 s
constexpr int64_t UNKNOWN_TIME = INT64_MIN;
constexpr auto KEY = c10::DispatchKey::BackendSelect;
constexpr uint64_t NO_SEQUENCE = uint64_t{1} << 63;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// ---- queue -------------------------------------------------------------------------

// Records that wait to be taken.
class Queue {
 public:
  // Appends the parts of a record; false if the queue is full: a call is dropped.
  bool put(Part head, Part sent = {}, Part received = {}) {
    std::lock_guard<std::mutex> guard(lock_);
    if (words_.size() > MOST_WORDS && head[0] == CALL) {
      ++dropped_;
      return false;
    }
    for (const Part& part : {head, sent, received}) {
      words_.insert(words_.end(), part.begin(), part.end());
    }
    return true;
  }

  Words take(int64_t& dropped) {
    std::lock_guard<std::mutex> guard(lock_);
    dropped = std::exchange(dropped_, 0);
    Words words;
    words.reserve(words_.size());  // calls seldom wait for the allocator
    words.swap(words_);
    return words;
  }

 private:
  std::mutex lock_;
  Words words_;
  int64_t dropped_ = 0;
} queue;

// ---- times of a device -------------------------------------------------------------

Event recorded_event(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type(),
                                            c10::EventFlag::BACKEND_DEFAULT);
  event->record(stream);
  return event;
}

// Records an event on the current stream; none during the capture of a CUDA graph, of
// which it would become a part.
Event event_now(c10::Device device) {
  {
    py::gil_scoped_acquire python;
    auto cuda = py::module_::import("torch.cuda");
    if (cuda.attr("is_current_stream_capturing")().cast<bool>()) return nullptr;
  }
  return recorded_event(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// Calls on devices, between an event before them and one after the wait for them.
class DeviceCalls {
  using DeviceCall = std::tuple<int64_t, Event, Event>;
  using Base = std::pair<Event, int64_t>;  // an event and its time on the host

 public:
  void end(int64_t number, const Event& before) {
    if (Event after = event_now(before->device())) {
      std::lock_guard<std::mutex> guard(lock_);
      calls_.emplace_back(number, before, after);
    }
  }

  // Puts an END for each call that its device has completed.
  void resolve() {
    std::deque<DeviceCall> calls;
    std::unique_lock<std::mutex> guard(lock_);
    calls.swap(calls_);
    guard.unlock();
    while (!calls.empty()) {
      const auto& [number, before, after] = calls.front();
      c10::DeviceGuard current(after->device());
      if (!after->query()) break;
      const auto& [event, ns] = recent_base(after->device());
      const auto start = ns + std::llround(event->elapsedTime(*before) * 1e6);
      const auto end = ns + std::llround(event->elapsedTime(*after) * 1e6);
      queue.put({END, 5, number, start, end});
      calls.pop_front();
    }
    guard.lock();
    calls_.insert(calls_.begin(), calls.begin(), calls.end());
  }

 private:
  const Base& recent_base(c10::Device device) {
    Base& base = bases_[device.index()];
    if (base.first != nullptr && now_ns() - base.second < REBASE_NS) return base;
    // on an idle stream it completes at once, whatever the training has queued
    auto side = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    const int64_t began = now_ns();
    Event event = recorded_event(side);
    event->synchronize();
    return base = {event, (began + now_ns()) / 2};
  }

  std::mutex lock_;
  std::deque<DeviceCall> calls_;
  std::unordered_map<int, Base> bases_;  // by index of the device
};

// Never destroyed: at the end of the process, the device goes before it.
auto& device_calls = *new DeviceCalls;

// ---- numbers that Python gives -----------------------------------------------------

// State of an installation.  It is never destroyed: a call that is under way in another
// thread may still use it after the hook is removed.
struct Installed {
  py::object arrive, search, meet, number, launched, failed;
  int64_t generation;
  std::atomic<bool> searches{true};  // for the calling module of all-to-alls
  Numbers groups, dtypes, nodes;
  std::mutex lock;
};

struct Thread {
  int64_t generation = -1, number = -1, context = -1;
  int64_t waiting = -1;              // synchronous call for which the thread waits next
  const c10d::Work* work = nullptr;  // its work, never dereferenced
  Event before;                      // its event, if it is on a device
};

std::atomic<Installed*> installed{nullptr};
std::atomic<int64_t> numbers{0}, generations{0};
std::unique_ptr<torch::Library> library;
thread_local Thread here;

// Numbers this thread and its context, if they are new.
void arrive(Installed& now) {
  if (here.generation == now.generation) return;
  py::gil_scoped_acquire python;
  py::tuple reply = now.arrive();
  here.number = reply[0].cast<int64_t>();
  here.context = reply[1].cast<int64_t>();
  here.generation = now.generation;
}

// Returns the number of a call's context, with the module that makes an all-to-all.
int64_t context_of(Installed& now, int64_t operation) {
  if (operation != ALL_TO_ALL || !now.searches) return here.context;
  py::gil_scoped_acquire python;
  const auto context = now.search().cast<int64_t>();
  now.searches = context >= 0;
  return now.searches ? context : here.context;
}

// Returns the number of a name, which `ask` returns at its first use.
template <typename Ask>
int64_t number_of(Installed& now, Numbers& names, const std::string& name, Ask ask) {
  {
    std::lock_guard<std::mutex> guard(now.lock);
    auto known = names.find(name);
    if (known != names.end()) return known->second;
  }
  // without the lock: the thread that holds the interpreter may wait for it
  py::gil_scoped_acquire python;
  const int64_t number = ask().template cast<int64_t>();
  std::lock_guard<std::mutex> guard(now.lock);
  return names[name] = number;
}

int64_t group_number(Installed& now, const Group& group) {
  return number_of(now, now.groups, group->getGroupName(), [&] {
    return now.meet(torch::jit::toPyObject(c10::IValue(group)));
  });
}

void failed(Installed& now, const std::string& name, const std::string& why) {
  py::gil_scoped_acquire python;
  try {
    now.failed(name, why.substr(0, why.find('\n')));  // without a traceback
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("moetraffic hook");
  }
}

// ---- arguments of a call -----------------------------------------------------------

struct Operator {
  std::string name;
  int64_t operation;     // index into OPERATIONS
  int64_t group;         // position of the process group
  int64_t input;         // position of this rank's input, -1 for none
  int64_t asynchronous;  // position of async_op, -1 for none
  c10::DispatchKeySet after;
};

struct Call {
  at::Tensor typed, output;  // a tensor of the call's type; one that it fills
  bool waits = false;        // the caller waits for the result at once
  int64_t group = -1, source = -1, destination = -1, bytes = 0;
  int64_t row = 0, rows_sent = 0, rows_received = 0;
  Words sent, received;
  int64_t number = -1, kind = -1;  // of a recorded call
  Event before;                    // if it is on a device

  bool on_device() const { return output.defined() && output.is_cuda(); }
};

void flatten(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) flatten(part, into);
  }
}

// Describes a call by its boxed arguments.
Call describe(Installed& now, const Operator& what, const c10::IValue* given) {
  Call call;
  const auto group = given[what.group].toCustomClass<c10d::ProcessGroup>();
  call.group = group_number(now, group);
  call.waits = what.asynchronous >= 0 && !given[what.asynchronous].toBool();
  std::vector<at::Tensor> inputs, outputs;
  flatten(given[0], outputs);
  if (what.input >= 0) flatten(given[what.input], inputs);
  if (!outputs.empty()) call.output = outputs[0];
  // only the root of a scatter has an input, but all ranks know its type
  if (what.input >= 0) call.typed = inputs.empty() ? call.output : inputs[0];
  if (what.name == "alltoall_base_") {
    const at::Tensor &input = call.typed, &output = call.output;
    call.rows_received = output.dim() ? output.size(0) : 0;
    call.rows_sent = input.dim() ? input.size(0) : 0;
    call.row = input.dim() ? input.element_size() : 0;
    for (int64_t d = 1; d < input.dim(); ++d) call.row *= input.size(d);
    call.received = given[3].toIntVector();
    call.sent = given[4].toIntVector();
  } else if (what.name == "alltoall_") {
    // the tensors may have different shapes, so rows are single elements
    call.row = call.typed.defined() ? call.typed.element_size() : 0;
    for (const at::Tensor& part : inputs) call.sent.push_back(part.numel());
    for (const at::Tensor& part : outputs) call.received.push_back(part.numel());
    for (const int64_t rows : call.sent) call.rows_sent += rows;
    for (const int64_t rows : call.received) call.rows_received += rows;
  } else {
    for (const at::Tensor& part : inputs) call.bytes += part.nbytes();
  }
  if (what.name == "send") {
    call.source = group->getRank();
    call.destination = given[2].toInt();
  } else if (what.name == "recv_" || what.name == "recv_any_source_") {
    // that of any source is only known on arrival
    call.source = what.name == "recv_" ? given[2].toInt() : -1;
    call.destination = group->getRank();
  }
  return call;
}

// ---- kernels -----------------------------------------------------------------------

void record(Installed& now, const Operator& what, Call& call) {
  int64_t link = -1, node = -1;
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!in_backward) {
    link = static_cast<int64_t>(at::sequence_number::peek()) - 1;
  } else if (auto running = torch::autograd::get_current_node()) {
    const uint64_t sequence = running->sequence_nr();
    // 2^64 - 1 for the node that accumulates the gradient of a parameter
    if (sequence < NO_SEQUENCE) link = static_cast<int64_t>(sequence);
    const std::string name = running->name();
    node = number_of(now, now.nodes, name, [&] { return now.number("node", name); });
  }
  const auto type =
      call.typed.defined() ? call.typed.scalar_type() : c10::ScalarType::Undefined;
  const int64_t dtype = number_of(now, now.dtypes, c10::toString(type), [&] {
    return now.number("dtype", torch::jit::toPyObject(call.typed));  // None: undefined
  });
  const auto sends = static_cast<int64_t>(call.sent.size());
  const auto receives = static_cast<int64_t>(call.received.size());
  const int64_t context = context_of(now, what.operation);
  const int64_t number = numbers.fetch_add(1);
  const int64_t head[CALL_HEAD] = {
      CALL, CALL_HEAD + sends + receives, number, now_ns(), what.operation, call.group,
      context, dtype, here.number, in_backward, c10::GradMode::is_enabled(), link,
      node, call.source, call.destination, call.bytes, call.row, call.rows_sent,
      call.rows_received, sends, receives};
  if (!queue.put(head, call.sent, call.received)) return;
  if (call.on_device()) call.before = event_now(call.output.device());
  call.kind = 2 * what.operation + in_backward;
  call.number = number;
}

// Lets the end of a call be found.
void launched(Installed& now, Call& call, const Work& work) {
  if (work == nullptr && call.before != nullptr) {
    device_calls.end(call.number, call.before);  // it is on the current stream
  } else if (call.waits && (!call.on_device() || call.before != nullptr)) {
    here.waiting = call.number;
    here.work = work.get();
    here.before = std::move(call.before);
  } else {
    py::gil_scoped_acquire python;
    now.launched(call.number, torch::jit::toPyObject(c10::IValue(work)),
                 torch::jit::toPyObject(call.output), call.kind, call.before);
  }
}

// Records a call and forwards it.
struct Kernel final : public c10::OperatorKernel {
  explicit Kernel(const Operator& given) : operator_(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const Operator& what = operator_;  // this is gone where the hook is removed
    auto forward = [&] { handle.redispatchBoxed(keys & what.after, stack); };
    Installed* now = installed.load(std::memory_order_acquire);
    // A mode or a tensor subclass calls the operator again with the plain tensors that
    // it sends; meta and fake tensors are not sent.
    if (now == nullptr || keys.has(c10::DispatchKey::Python) ||
        keys.has(c10::DispatchKey::Meta)) {
      return forward();
    }
    Call call;
    here.waiting = -1;
    here.before = nullptr;
    try {
      arrive(*now);
      const auto given = torch::jit::last(*stack, handle.schema().arguments().size());
      call = describe(*now, what, given.data());
      record(*now, what, call);
    } catch (std::exception& error) {
      failed(*now, what.name, error.what());
    }
    if (call.number < 0) return forward();
    try {
      forward();
    } catch (...) {
      queue.put({RAISED, 3, call.number});
      throw;
    }
    try {
      const bool works = !stack->empty() && stack->back().isObject();
      launched(*now, call, works ? stack->back().toCustomClass<c10d::Work>() : nullptr);
    } catch (std::exception& error) {
      failed(*now, what.name, error.what());
    }
  }

  const Operator& operator_;
};

// ---- wait --------------------------------------------------------------------------

// Records the end of the synchronous call of this thread, if its work was waited for.
bool waited(PyObject* given, bool raised) noexcept {
  if (here.waiting < 0) return false;
  try {
    auto* work = py::handle(given).cast<c10d::Work*>();
    if (work != here.work) return false;
    if (raised && !work->isCompleted()) return true;  // it may be waited for again
    const int64_t number = std::exchange(here.waiting, -1);
    if (raised) {
      queue.put({RAISED, 3, number});
    } else if (here.before == nullptr) {
      queue.put({END, 5, number, UNKNOWN_TIME, now_ns()});
    } else {
      device_calls.end(number, here.before);
    }
  } catch (std::exception& error) {
    if (Installed* now = installed.load()) failed(*now, "wait", error.what());
  }
  return true;
}

// Method in place of Work.wait; `self` is the tuple (original, ended).
PyObject* call_wait(PyObject* self, PyObject* const* given, Py_ssize_t count,
                    PyObject* names) {
  PyObject* result =
      PyObject_Vectorcall(PyTuple_GET_ITEM(self, 0), given, count, names);
  const bool raised = result == nullptr;
  py::error_scope exception;  // of the wait, raised at the end
  if (count < 1 || waited(given[0], raised)) return result;
  PyObject* ended = PyTuple_GET_ITEM(self, 1);
  PyObject* none = PyObject_CallFunctionObjArgs(
      ended, given[0], raised ? Py_True : Py_False, nullptr);
  if (none == nullptr) PyErr_WriteUnraisable(ended);  // it never reaches the training
  Py_XDECREF(none);
  return result;
}

py::object wait(const py::object& original, const py::object& ended) {
  static PyMethodDef definition = {
      "wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_wait)),
      METH_FASTCALL | METH_KEYWORDS, nullptr};
  auto function = py::reinterpret_steal<py::object>(PyCFunction_NewEx(
      &definition, py::make_tuple(original, ended).ptr(), nullptr));
  // binds to a work as a function of Python does
  return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
}

// ---- module ------------------------------------------------------------------------

void uninstall() {
  installed.store(nullptr, std::memory_order_release);
  library.reset();
}

void install(const py::list& operators, const py::object& arrive,
             const py::object& search, const py::object& meet,
             const py::object& number, const py::object& launched,
             const py::object& failed) {
  auto* now = new Installed{arrive, search,   meet,
                            number, launched, failed, generations.fetch_add(1)};
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d",
                                             std::nullopt, __FILE__, __LINE__);
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, KEY);
  for (const py::handle& row : operators) {
    auto given = row.cast<py::tuple>();
    auto name = given[0].cast<std::string>();
    auto handle = c10::Dispatcher::singleton().findSchema({"c10d::" + name, ""});
    if (!handle) continue;  // older releases lack some of the coalesced ones
    const auto& arguments = handle->schema().arguments();
    int64_t asynchronous = static_cast<int64_t>(arguments.size()) - 1;
    while (asynchronous >= 0 && arguments[asynchronous].name() != "async_op" &&
           arguments[asynchronous].name() != "asyncOp") {
      --asynchronous;
    }
    const auto& what = *new Operator{  // never destroyed either
        name, given[1].cast<int64_t>(), given[2].cast<int64_t>(),
        given[3].cast<int64_t>(), asynchronous, after};
    library->impl(name.c_str(),
                  torch::dispatch(KEY, torch::CppFunction::makeFromBoxedFunctor<Kernel>(
                                           std::make_unique<Kernel>(what))));
  }
  installed.store(now, std::memory_order_release);
}

void put(const py::buffer& words) {
  const py::buffer_info buffer = words.request();
  queue.put(Part(static_cast<const int64_t*>(buffer.ptr),
                 buffer.size * buffer.itemsize / sizeof(int64_t)));
}

py::tuple take() {
  int64_t dropped = 0;
  Words words;
  {
    py::gil_scoped_release others_may_run;
    try {
      device_calls.resolve();
    } catch (std::exception& error) {
      if (Installed* now = installed.load()) failed(*now, "device", error.what());
    }
    words = queue.take(dropped);
  }
  py::bytes content(reinterpret_cast<const char*>(words.data()), 8 * words.size());
  return py::make_tuple(std::move(content), dropped);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<c10::Event, Event>(module, "Event", py::module_local());
  // Installs a kernel on each operator, given by name, index into OPERATIONS, positions
  // of the process group and of the input (-1: none).  arrive() returns the numbers of
  // a new thread and its context, search() that of an all-to-all's context, -1 to end
  // the search; meet(group) and number(kind, name) those of a group, of a dtype (given
  // by a tensor) or of an autograd node.  launched is CompletionTracker's, of
  // asynchronous calls; failed(operator, reason) receives errors of the hook.
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  // Sets the number of this thread's context.
  module.def("stand", [](int64_t context) { here.context = context; });
  // wait(original, ended): a method that calls original, and then puts the END of the
  // thread's synchronous call or, where there is none, calls ended(work, raised).
  module.def("wait", &wait);
  // Records an event after a call on a device, given the event before it.
  module.def("ended", [](int64_t call, const Event& e) { device_calls.end(call, e); });
  module.def("put", &put);    // appends a record (int64 words)
  module.def("take", &take);  // removes all: bytes, and the number of dropped calls
  module.def("calls", [] { return numbers.load(); });  // recorded so far
}
