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
#include "native_spent.hpp"

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

using moetraffic::Words;

constexpr int64_t MARK = 0, CALL = 1, END = 2;
constexpr int64_t HEAD = 21;  // words of a call before its splits
constexpr int64_t UNKNOWN_TIME = INT64_MIN;
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
  int64_t spent = 0;  // on the call that is waited for
  std::string group;  // the last call's, and its number
  int64_t members = -1;
};

struct Operator {
  std::string name;
  int64_t code;         // index into OPERATIONS
  int64_t group;        // position of the process group
  int64_t input;        // position of this rank's input, -1 for none
  int64_t asynchronous;  // position of async_op, -1 for none
  c10::DispatchKeySet after;
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
moetraffic::Spent spent;
std::atomic<Installed*> installed{nullptr};
std::atomic<int64_t> numbers{0};
std::atomic<int64_t> generations{0};
std::unique_ptr<torch::Library> library;
thread_local Thread here;

void arrive(Installed& now) {
  py::gil_scoped_acquire python;
  py::tuple told = now.sink.arrive();
  here.number = told[0].cast<int64_t>();
  here.place = told[1].cast<int64_t>();
  here.waiting = -1;
  here.members = -1;
  here.generation = now.generation;
}

int64_t group_number(Installed& now, const c10d::ProcessGroup& group,
                     const c10::IValue& boxed) {
  const std::string& name = group.getGroupName();
  if (here.members >= 0 && here.group == name) return here.members;
  int64_t number = -1;
  {
    std::lock_guard<std::mutex> guard(now.lock);
    auto known = now.groups.find(name);
    if (known != now.groups.end()) number = known->second;
  }
  if (number < 0) {
    // without the lock: who holds the interpreter may wait for it
    py::gil_scoped_acquire python;
    number = now.sink.meet(torch::jit::toPyObject(boxed)).cast<int64_t>();
    std::lock_guard<std::mutex> guard(now.lock);
    now.groups[name] = number;
  }
  here.group = name;
  here.members = number;
  return number;
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

using Tensors = c10::SmallVector<at::Tensor, 4>;

void flatten(const c10::IValue& value, Tensors& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) into.push_back(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) flatten(part, into);
  }
}

int64_t rows_of(const at::Tensor& tensor) {
  return tensor.dim() ? tensor.size(0) : 0;
}

// As IValue::toIntVector, which copies each element's IValue: five times as slow.
Words counts(const c10::IValue& value) {
  c10::ArrayRef<c10::IValue> given = value.toListRef();
  Words found(given.size());
  for (size_t n = 0; n < given.size(); ++n) found[n] = given[n].toInt();
  return found;
}

struct Noted {
  int64_t number = -1;
  int64_t again = 0;
  at::Tensor output;
};

Noted note(Installed& now, const Operator& what, torch::jit::Stack& stack,
           size_t arguments) {
  auto given = [&](int64_t position) -> const c10::IValue& {
    return stack[stack.size() - arguments + position];
  };
  if (here.generation != now.generation) arrive(now);

  auto group = given(what.group).toCustomClass<c10d::ProcessGroup>();
  int64_t members = group_number(now, *group, given(what.group));
  int64_t source = -1, destination = -1, bytes = 0, row = 0, rows_sent = 0;
  int64_t rows_received = 0;
  Words sent, received;
  at::Tensor typed;
  Noted noted;

  if (what.name == "alltoall_base_") {
    noted.output = given(0).toTensor();
    typed = given(1).toTensor();
    received = counts(given(3));
    sent = counts(given(4));
    rows_sent = rows_of(typed);
    rows_received = rows_of(noted.output);
    if (typed.dim()) {
      row = typed.element_size();
      for (int64_t d = 1; d < typed.dim(); ++d) row *= typed.size(d);
    }
  } else {
    Tensors inputs, outputs;
    if (what.input >= 0) flatten(given(what.input), inputs);
    flatten(given(0), outputs);
    if (!outputs.empty()) noted.output = outputs[0];
    if (what.name == "alltoall_") {
      // the parts may have any shapes: an element is the only row they share
      typed = inputs.empty() ? noted.output : inputs[0];
      row = typed.defined() ? typed.element_size() : 0;
      for (const at::Tensor& part : inputs) {
        sent.push_back(part.numel());
        rows_sent += part.numel();
      }
      for (const at::Tensor& part : outputs) {
        received.push_back(part.numel());
        rows_received += part.numel();
      }
    } else if (what.input >= 0) {
      // a scatter's input is at its root alone, and its type everywhere
      typed = inputs.empty() ? noted.output : inputs[0];
      for (const at::Tensor& part : inputs) bytes += part.nbytes();
      if (what.name == "send") {
        source = group->getRank();
        destination = given(2).toInt();
      } else if (what.name == "recv_") {
        source = given(2).toInt();
        destination = group->getRank();
      } else if (what.name == "recv_any_source_") {
        destination = group->getRank();  // known when something has come
      }
    }
  }

  int64_t dtype = dtype_number(now, typed);
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

  int64_t length = HEAD + static_cast<int64_t>(sent.size() + received.size());
  int64_t number = numbers.fetch_add(1, std::memory_order_relaxed);
  bool kept = buffer.put(length, true, [&](int64_t* word) {
    const int64_t head[HEAD] = {
        CALL, length, number, now_ns(), what.code, members, here.place,
        dtype, here.number, noted.again, c10::GradMode::is_enabled(), link,
        ran, source, destination, bytes, row, rows_sent, rows_received,
        static_cast<int64_t>(sent.size()), static_cast<int64_t>(received.size())};
    std::memcpy(word, head, sizeof(head));
    word += HEAD;
    if (!sent.empty()) std::memcpy(word, sent.data(), 8 * sent.size());
    if (!received.empty()) {
      std::memcpy(word + sent.size(), received.data(), 8 * received.size());
    }
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

struct Kernel final : public c10::OperatorKernel {
  explicit Kernel(Operator given) : what(std::move(given)) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
  const Operator what;
};

void Kernel::operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  Installed* now = installed.load(std::memory_order_acquire);
  // a mode or a tensor subclass comes first: what it really sends, it calls again with
  // plain tensors; what is on the meta device, as fake tensors are then, goes nowhere
  if (now == nullptr || keys.has(c10::DispatchKey::Python) ||
      keys.has(c10::DispatchKey::Meta)) {
    handle.redispatchBoxed(keys & what.after, stack);
    return;
  }
  const int64_t begun = now_ns();
  Noted noted;
  bool on_device = false, waits = false;
  here.waiting = -1;
  size_t arguments = handle.schema().arguments().size();
  py::object event;
  try {
    if (what.asynchronous >= 0) {
      waits = !(*stack)[stack->size() - arguments + what.asynchronous].toBool();
    }
    noted = note(*now, what, *stack, arguments);
    on_device = noted.output.defined() && noted.output.is_cuda();
    if (on_device && noted.number >= 0) {
      py::gil_scoped_acquire python;
      event = now->sink.before(torch::jit::toPyObject(noted.output));
    }
  } catch (std::exception& error) {
    noted.number = -1;
    failed(*now, what.name, error.what());
  }
  const int64_t launching = now_ns();
  try {
    handle.redispatchBoxed(keys & what.after, stack);
  } catch (...) {
    if (event) {
      py::gil_scoped_acquire python;
      event = py::object();
    }
    throw;
  }
  if (noted.number < 0) return;
  if (waits && !on_device) {
    here.waiting = noted.number;  // not asynchronous: the caller waits next
    here.spent = launching - begun;
    return;
  }
  const int64_t launched = now_ns();
  py::gil_scoped_acquire python;
  try {
    int64_t kind = 2 * what.code + noted.again;
    py::object tensor = py::none();
    if (noted.output.defined()) tensor = torch::jit::toPyObject(noted.output);
    if (!event) event = py::none();
    now->sink.launched(noted.number, torch::jit::toPyObject(stack->back()), tensor,
                       kind, event);
  } catch (std::exception& error) {
    failed(*now, what.name, error.what());
  }
  event = py::object();
  spent.add(launching - begun + now_ns() - launched);
}

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
  spent.clear();
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d",
                                             std::nullopt, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  constexpr auto key = c10::DispatchKey::BackendSelect;
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, key);
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
    auto further = std::make_unique<Kernel>(
        Operator{name, row[1].cast<int64_t>(), row[2].cast<int64_t>(),
                 row[3].cast<int64_t>(), asynchronous, after});
    library->impl(
        name.c_str(),
        torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor<Kernel>(
                                 std::move(further))));
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

bool waited() {
  int64_t number = here.waiting;
  if (number < 0) return false;
  here.waiting = -1;
  int64_t now = now_ns();
  buffer.put(5, false, [&](int64_t* word) {
    const int64_t end[5] = {END, 5, number, UNKNOWN_TIME, now};
    std::memcpy(word, end, sizeof(end));
  });
  spent.add(here.spent + now_ns() - now);
  return true;
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
  module.def("waited", &waited);
  module.def("take", &take);
  module.def("calls", [] { return numbers.load(); });
  module.def("spent", [] { return spent.read(); });
  module.def("waiting", [] { return buffer.waiting(); });
}
