// What the hook's kernels record of the arguments of a call.

#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <string>

#include "native_buffer.hpp"

namespace moetraffic {

struct Operator {
  std::string name;
  int64_t code;         // index into OPERATIONS
  int64_t group;        // position of the process group
  int64_t input;        // position of this rank's input, -1 for none
  int64_t asynchronous;  // position of async_op, -1 for none
  c10::DispatchKeySet after;
};

using Tensors = c10::SmallVector<at::Tensor, 4>;

inline void flatten(const c10::IValue& value, Tensors& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) into.push_back(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) flatten(part, into);
  }
}

inline int64_t rows_of(const at::Tensor& tensor) {
  return tensor.dim() ? tensor.size(0) : 0;
}

// As IValue::toIntVector, which copies each element's IValue: five times as slow.
inline Words counts(const c10::IValue& value) {
  c10::ArrayRef<c10::IValue> given = value.toListRef();
  Words found(given.size());
  for (size_t n = 0; n < given.size(); ++n) found[n] = given[n].toInt();
  return found;
}

// What a record holds of a call, beside where and when it was made.
struct Call {
  at::Tensor typed, output;  // of the call's type; one that it fills
  int64_t members = -1, source = -1, destination = -1, bytes = 0;
  int64_t row = 0, rows_sent = 0, rows_received = 0;
  c10::ArrayRef<int64_t> sent, received;
};

inline void describe_splits(Call& call, const at::Tensor& output, const at::Tensor& input) {
  call.output = output;
  call.typed = input;
  call.rows_sent = rows_of(input);
  call.rows_received = rows_of(output);
  if (input.dim()) {
    call.row = input.element_size();
    for (int64_t d = 1; d < input.dim(); ++d) call.row *= input.size(d);
  }
}

// Describes a call by its boxed arguments; `sent` and `received` hold its splits.
inline Call described(const Operator& what, const c10::IValue* given,
                      const c10d::ProcessGroup& group, Words& sent, Words& received) {
  Call call;
  if (what.name == "alltoall_base_") {
    describe_splits(call, given[0].toTensor(), given[1].toTensor());
    received = counts(given[3]);
    sent = counts(given[4]);
  } else {
    Tensors inputs, outputs;
    if (what.input >= 0) flatten(given[what.input], inputs);
    flatten(given[0], outputs);
    if (!outputs.empty()) call.output = outputs[0];
    if (what.name == "alltoall_") {
      // the parts may have any shapes: an element is the only row they share
      call.typed = inputs.empty() ? call.output : inputs[0];
      call.row = call.typed.defined() ? call.typed.element_size() : 0;
      for (const at::Tensor& part : inputs) {
        sent.push_back(part.numel());
        call.rows_sent += part.numel();
      }
      for (const at::Tensor& part : outputs) {
        received.push_back(part.numel());
        call.rows_received += part.numel();
      }
    } else if (what.input >= 0) {
      // a scatter's input is at its root alone, and its type everywhere
      call.typed = inputs.empty() ? call.output : inputs[0];
      for (const at::Tensor& part : inputs) call.bytes += part.nbytes();
      if (what.name == "send") {
        call.source = group.getRank();
        call.destination = given[2].toInt();
      } else if (what.name == "recv_") {
        call.source = given[2].toInt();
        call.destination = group.getRank();
      } else if (what.name == "recv_any_source_") {
        call.destination = group.getRank();  // known when something has come
      }
    }
  }
  call.sent = sent;
  call.received = received;
  return call;
}

}  // namespace moetraffic
