// The hook's kernels and the buffer of their records, without Python's interpreter.
//
// What native.py says of each function holds here.  Records are words as pipe.py lays
// them out; a mark, a word MARK and a length, stands where a record of Python's comes.
// torch alone is linked: the kernel is boxed, so one serves every operator.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "native_buffer.hpp"
#include "native_call.hpp"
#include "native_wait.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace torch::jit {
// declared here, for its own header takes a minute to compile
py::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace {

using moetraffic::Call;
using moetraffic::Operator;
using moetraffic::Words;

constexpr int64_t MARK = 0, CALL = 1, END = 2;
constexpr int64_t HEAD = 21;  // words of a call before its splits
constexpr int64_t UNKNOWN_TIME = INT64_MIN;
constexpr auto KEY = c10::DispatchKey::BackendSelect;
constexpr uint64_t NO_SEQUENCE = uint64_t{1} << 63;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// ---- what Python is asked, once for each thing -------------------------------------

struct Sink {
  py::object arrive, meet, number, before, launched, failed;
};

struct Thread {
  int64_t generation = -1, number = -1, place = -1, waiting = -1;
  const c10d::Work* work = nullptr;  // of the call `waiting`, never dereferenced
  const std::string* group = nullptr;  // the last call's, and its number
  int64_t members = -1;
};

// Everything of one installation.  It is never destroyed: a call that is under way in
// another thread while the hook is taken out may still look into it.
struct Installed {
  Sink sink;
  int64_t generation;
  std::unordered_map<std::string, int64_t> groups;
  std::unordered_map<const void*, int64_t> nodes;
  std::unordered_map<std::string, int64_t> named_nodes;
  std::atomic<int64_t> dtypes[128];
  std::mutex lock;
};

moetraffic::Buffer buffer;
std::atomic<Installed*> installed{nullptr};
std::atomic<int64_t> numbers{0};
std::atomic<int64_t> generations{0};
std::unique_ptr<torch::Library> library;
thread_local Thread here;

void arrive(Installed& now, int64_t operation) {
  py::gil_scoped_acquire python;
  py::tuple told = now.sink.arrive(operation);
  here.number = told[0].cast<int64_t>();
  here.place = told[1].cast<int64_t>();
  here.waiting = -1;
  here.members = -1;
  // while the calling blocks are searched, every call arrives anew
  here.generation = told[2].cast<bool>() ? -1 : now.generation;
}

template <typename Boxed>
int64_t group_number(Installed& now, const c10d::ProcessGroup& group, Boxed boxed) {
  const std::string& name = group.getGroupName();
  if (here.members >= 0 && *here.group == name) return here.members;
  {
    std::lock_guard<std::mutex> guard(now.lock);
    auto known = now.groups.find(name);
    if (known != now.groups.end()) {
      here.group = &known->first;
      return here.members = known->second;
    }
  }
  // without the lock: who holds the interpreter may wait for it
  py::gil_scoped_acquire python;
  py::object told = now.sink.meet(torch::jit::toPyObject(boxed()));
  const auto number = told.cast<int64_t>();
  std::lock_guard<std::mutex> guard(now.lock);
  // a key stays where it is while others are added
  here.group = &now.groups.insert_or_assign(name, number).first->first;
  return here.members = number;
}

int64_t dtype_number(Installed& now, const at::Tensor& typed) {
  // the first is of calls without any: barriers
  size_t code = typed.defined() ? 1 + static_cast<size_t>(typed.scalar_type()) : 0;
  std::atomic<int64_t>& known = now.dtypes[code];
  int64_t number = known.load(std::memory_order_relaxed);
  if (number < 0) {
    py::gil_scoped_acquire python;
    py::object told = py::none();
    if (typed.defined()) told = torch::jit::toPyObject(typed);
    number = now.sink.number("dtype", told).cast<int64_t>();
    known = number;
  }
  return number;
}

int64_t node_number(Installed& now, torch::autograd::Node& node) {
  const std::type_info& type = typeid(node);
  // Functions written in Python share one type, and have their names in Python
  bool in_python = std::strcmp(type.name(), "N5torch8autograd6PyNodeE") == 0;
  if (!in_python) {
    std::lock_guard<std::mutex> guard(now.lock);
    auto known = now.nodes.find(&type);
    if (known != now.nodes.end()) return known->second;
  }
  std::string name = node.name();
  {
    std::lock_guard<std::mutex> guard(now.lock);
    auto known = now.named_nodes.find(name);
    if (known != now.named_nodes.end()) {
      if (!in_python) now.nodes[&type] = known->second;
      return known->second;
    }
  }
  py::gil_scoped_acquire python;
  int64_t number = now.sink.number("node", name).cast<int64_t>();
  std::lock_guard<std::mutex> guard(now.lock);
  now.named_nodes[name] = number;
  if (!in_python) now.nodes[&type] = number;
  return number;
}

// ---- a call ------------------------------------------------------------------------

struct Noted {
  int64_t number = -1;
  int64_t again = 0;
};

Noted note(Installed& now, const Operator& what, const Call& call) {
  Noted noted;
  int64_t dtype = dtype_number(now, call.typed);
  int64_t link, ran = -1;
  if (torch::autograd::get_current_graph_task_id() == -1) {
    link = static_cast<int64_t>(at::sequence_number::peek()) - 1;
  } else {
    noted.again = 1;
    link = -1;
    auto node = torch::autograd::get_current_node();
    if (node) {  // none between two nodes
      uint64_t sequence = node->sequence_nr();
      // of a node that sums a parameter's gradient: 2^64 - 1
      if (sequence < NO_SEQUENCE) link = static_cast<int64_t>(sequence);
      ran = node_number(now, *node);
    }
  }
  const auto sent = static_cast<int64_t>(call.sent.size());
  const auto received = static_cast<int64_t>(call.received.size());
  const int64_t length = HEAD + sent + received;
  const int64_t number = numbers.fetch_add(1, std::memory_order_relaxed);
  bool kept = buffer.put(length, true, [&](int64_t* word) {
    const int64_t head[HEAD] = {
        CALL, length, number, now_ns(), what.code, call.members, here.place,
        dtype, here.number, noted.again, c10::GradMode::is_enabled(), link,
        ran, call.source, call.destination, call.bytes, call.row, call.rows_sent,
        call.rows_received, sent, received};
    word = std::copy(head, head + HEAD, word);
    word = std::copy(call.sent.begin(), call.sent.end(), word);
    std::copy(call.received.begin(), call.received.end(), word);
  });
  if (kept) noted.number = number;
  return noted;
}

void failed(Installed& now, const std::string& name, const char* why) {
  py::gil_scoped_acquire python;
  const std::string whole = why;  // with a traceback below its first line
  try {
    now.sink.failed(name, whole.substr(0, whole.find('\n')));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("moetraffic hook");
  }
}

// A recorded call from before it is forwarded until it returns.
class Following {
 public:
  Following(Installed& now, const Operator& what) : now_(now), what_(what) {
    here.waiting = -1;
  }

  // Names this thread, if it is new.
  void enter() {
    if (here.generation != now_.generation) arrive(now_, what_.code);
  }

  void begin(const Call& call, bool waits) {
    output_ = call.output;
    on_device_ = output_.defined() && output_.is_cuda();
    waits_ = waits && !on_device_;
    noted_ = note(now_, what_, call);
    if (on_device_ && noted_.number >= 0) {
      py::gil_scoped_acquire python;
      event_ = now_.sink.before(torch::jit::toPyObject(output_));
    }
  }

  void failed_with(const std::exception& error) {
    noted_.number = -1;
    failed(now_, what_.name, error.what());
  }

  template <typename Result>
  void end(const c10d::Work* work, Result result) {
    if (noted_.number < 0) return;
    if (waits_) {
      here.waiting = noted_.number;  // not asynchronous: the caller waits next
      here.work = work;
      return;
    }
    py::gil_scoped_acquire python;
    try {
      py::object tensor = py::none();
      if (output_.defined()) tensor = torch::jit::toPyObject(output_);
      if (!event_) event_ = py::none();
      now_.sink.launched(noted_.number, torch::jit::toPyObject(result()), tensor,
                         2 * what_.code + noted_.again, event_);
    } catch (std::exception& error) {
      failed(now_, what_.name, error.what());
    }
    event_ = py::object();
  }

  ~Following() {
    if (event_) {  // the call raised an exception
      py::gil_scoped_acquire python;
      event_ = py::object();
    }
  }

 private:
  Installed& now_;
  const Operator& what_;
  Noted noted_;
  at::Tensor output_;
  py::object event_;
  bool on_device_ = false, waits_ = false;
};

// The installation that records a call with these keys, nullptr for none: a mode or a
// tensor subclass comes first: what it really sends, it calls again with plain tensors;
// what is on the meta device, as fake tensors are then, goes nowhere.
Installed* recording(c10::DispatchKeySet keys) {
  if (keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::Meta)) {
    return nullptr;
  }
  return installed.load(std::memory_order_acquire);
}

struct Kernel final : public c10::OperatorKernel {
  explicit Kernel(const Operator& given) : what(given) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    Installed* now = recording(keys);
    if (now == nullptr) {
      handle.redispatchBoxed(keys & what.after, stack);
      return;
    }
    Following call(*now, what);
    try {
      call.enter();
      const auto given = torch::jit::last(*stack, handle.schema().arguments().size());
      bool waits = what.asynchronous >= 0 && !given[what.asynchronous].toBool();
      auto group = given[what.group].toCustomClass<c10d::ProcessGroup>();
      Words sent, received;
      Call noted = moetraffic::described(what, given.data(), *group, sent, received);
      noted.members = group_number(*now, *group, [&] { return given[what.group]; });
      call.begin(noted, waits);
    } catch (std::exception& error) {
      call.failed_with(error);
    }
    handle.redispatchBoxed(keys & what.after, stack);
    const c10::IValue& result = stack->back();
    const c10d::Work* work = nullptr;
    if (result.isObject()) work = result.toCustomClass<c10d::Work>().get();
    call.end(work, [&] { return result; });
  }

  const Operator& what;
};

// All-to-alls with splits, by far the most frequent calls, need no boxed arguments.
// Releases of torch differ in the arguments that follow the splits.
template <typename... Further>
struct Unboxed {
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Signature = c10::intrusive_ptr<c10d::Work>(at::Tensor&, at::Tensor&,
                                                   const Group&, Words, Words,
                                                   Further...);
  static inline const Operator* what = nullptr;

  static c10::intrusive_ptr<c10d::Work> call(c10::DispatchKeySet keys,
                                             at::Tensor& output, at::Tensor& input,
                                             const Group& group, Words received,
                                             Words sent, Further... further) {
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("c10d::alltoall_base_", "")
                                   .template typed<Signature>();
    auto forward = [&] {
      return handle.redispatch(keys & what->after, output, input, group,
                               std::move(received), std::move(sent), further...);
    };
    Installed* now = recording(keys);
    if (now == nullptr) return forward();
    Following following(*now, *what);
    try {
      following.enter();
      Call noted;
      noted.members = group_number(*now, *group, [&] { return c10::IValue(group); });
      moetraffic::describe_splits(noted, output, input);
      noted.sent = sent;
      noted.received = received;
      following.begin(noted, waits(further...));
    } catch (std::exception& error) {
      following.failed_with(error);
    }
    auto work = forward();
    following.end(work.get(), [&] { return c10::IValue(work); });
    return work;
  }

  static bool waits(int64_t) { return false; }
  static bool waits(bool asynchronous, int64_t) { return !asynchronous; }

  // Registers the kernel, if this release of torch has this signature.
  static bool install(const c10::OperatorHandle& handle, const Operator& given) {
    try {
      (void)handle.typed<Signature>();
    } catch (const c10::Error&) {
      return false;
    }
    what = &given;
    library->impl(given.name.c_str(), torch::dispatch(KEY, &call));
    return true;
  }
};

// ---- for native.py -----------------------------------------------------------------

void uninstall() {
  installed.store(nullptr, std::memory_order_release);
  library.reset();
}

void install(const py::list& operators, py::object arrive, py::object meet,
             py::object number, py::object before, py::object launched,
             py::object failed) {
  auto* now = new Installed{
      Sink{std::move(arrive), std::move(meet), std::move(number), std::move(before),
           std::move(launched), std::move(failed)},
      generations.fetch_add(1)};
  for (auto& dtype : now->dtypes) dtype = -1;
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d",
                                             std::nullopt, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, KEY);
  for (const py::handle& given : operators) {
    auto row = given.cast<py::tuple>();
    auto name = row[0].cast<std::string>();
    auto found = dispatcher.findSchema({"c10d::" + name, ""});
    if (!found) continue;  // older releases lack some of the coalesced ones
    int64_t asynchronous = -1;
    const auto& arguments = found->schema().arguments();
    for (size_t n = 0; n < arguments.size(); ++n) {
      const std::string& called = arguments[n].name();
      if (called == "async_op" || called == "asyncOp") {
        asynchronous = static_cast<int64_t>(n);
      }
    }
    // never destroyed either
    const auto& what = *new Operator{
        name, row[1].cast<int64_t>(), row[2].cast<int64_t>(), row[3].cast<int64_t>(),
        asynchronous, after};
    if (name == "alltoall_base_" && (Unboxed<bool, int64_t>::install(*found, what) ||
                                     Unboxed<int64_t>::install(*found, what))) {
      continue;
    }
    library->impl(name.c_str(),
                  torch::dispatch(KEY, torch::CppFunction::makeFromBoxedFunctor<Kernel>(
                                           std::make_unique<Kernel>(what))));
  }
  installed.store(now, std::memory_order_release);
}

void mark() {
  buffer.put(2, false, [](int64_t* word) {
    word[0] = MARK;
    word[1] = 2;
  });
}

void stand(int64_t place) { here.place = place; }

bool waited(PyObject* work) {
  const int64_t number = here.waiting;
  if (number < 0) return false;
  // pybind11 keeps the pointer of an object of one C++ type; it differs from that of
  // the work if the registered class has another base before Work
  auto* kept = reinterpret_cast<py::detail::instance*>(work);
  const bool same = kept->simple_layout && kept->simple_value_holder[0] == here.work;
  if (!same && py::handle(work).cast<c10d::Work*>() != here.work) return false;
  here.waiting = -1;
  const int64_t end[5] = {END, 5, number, UNKNOWN_TIME, now_ns()};
  buffer.put(5, false, [&](int64_t* word) { std::copy(end, end + 5, word); });
  return true;
}

py::object wait(const py::object& original, const py::object& ended) {
  PyObject* made = moetraffic::new_wait(original.ptr(), ended.ptr(), waited);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// What has come since the last time: the bytes of words, and None for a mark.
py::tuple take() {
  std::vector<std::string> pieces;
  int64_t lost = 0;
  {
    py::gil_scoped_release others_may_run;
    std::deque<Words> taken = buffer.take(lost);
    pieces.emplace_back();
    for (const Words& chunk : taken) {
      const int64_t* word = chunk.data();
      const int64_t* last = word + chunk.size();
      const int64_t* begin = word;
      auto keep = [&](const int64_t* end) {
        pieces.back().append(reinterpret_cast<const char*>(begin), 8 * (end - begin));
      };
      while (word < last) {
        const int64_t* next = word + word[1];
        if (word[0] == MARK) {
          keep(word);
          pieces.emplace_back();
          begin = next;
        }
        word = next;
      }
      keep(last);
    }
    buffer.give_back(std::move(taken));
  }
  py::list told;
  for (size_t n = 0; n < pieces.size(); ++n) {
    if (n) told.append(py::none());
    if (!pieces[n].empty()) told.append(py::bytes(pieces[n]));
  }
  return py::make_tuple(told, lost);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  module.def("mark", &mark);
  module.def("stand", &stand);
  module.def("wait", &wait);
  module.def("take", &take);
  module.def("calls", [] { return numbers.load(); });
  module.def("waiting", [] { return buffer.waiting(); });
}
