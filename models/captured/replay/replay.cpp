#include "models/captured/replay/replay.h"

#include "base/error.h"
#include "models/captured/compiled/compiled_code.h"
#include "models/captured/format/arguments.h"
#include "models/captured/replay/argument_rules.h"
#include "models/captured/replay/overwriting.h"
#include "models/layers/dropout_masks.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/philox_tensor.h"
#include "models/tensors/shape_text.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <set>
#include <string_view>

namespace stagecraft::captured {
namespace {

constexpr std::size_t kUsualArguments = 16;

/// The argument as it is for micro-batches of b samples; none where it is a value.
c10::IValue constant_of(const Argument& argument, std::int64_t b, c10::Device device) {
  switch (argument.kind) {
    case Argument::Kind::constant:
      return argument.constant;
    case Argument::Kind::integer:
      return argument.sizes[0].at(b);
    case Argument::Kind::number:
      return c10::Scalar(argument.sizes[0].at(b));
    case Argument::Kind::wrapped:
      return wrapped_number(c10::Scalar(argument.sizes[0].at(b)));
    case Argument::Kind::integers: {
      c10::List<std::int64_t> list;
      for (const AffineSize& size : argument.sizes) list.push_back(size.at(b));
      return list;
    }
    case Argument::Kind::device:
      return device;
    default:
      return {};
  }
}

/// Of a device or its libraries, as LibTorch begins to tell of them.
constexpr std::string_view kDeviceErrors[] = {"CUDA", "cuDNN", "CUDNN", "CUBLAS", "cuBLAS", "NCCL"};

bool is_of_a_device(const c10::Error& error) {
  const std::string_view what = error.what_without_backtrace();
  return std::ranges::any_of(kDeviceErrors, [&](std::string_view each) { return what.starts_with(each); });
}

constexpr const char* kMm = "aten::mm";
constexpr const char* kAddmm = "aten::addmm";

/// x W, or x W + b with a row of b, of sizes that fit: LibTorch's operator refuses others.
bool is_product(const Step& step, const std::vector<Value>& values) {
  if (step.name != kMm && step.name != kAddmm) return false;
  const std::size_t left = step.name == kMm ? 0 : 1;
  for (std::size_t i = 0; i < left + 2; ++i) {
    if (step.arguments[i].kind != Argument::Kind::value) return false;
  }
  const auto sizes = [&](std::size_t i) -> const std::vector<AffineSize>& {
    return values[static_cast<std::size_t>(step.arguments[i].values[0])].type.sizes;
  };
  const std::vector<AffineSize>&x = sizes(left), &w = sizes(left + 1);
  if (x.size() != 2 || w.size() != 2 || x[1] != w[0]) return false;
  if (step.name == kMm) return true;
  const auto one = [&](std::size_t i) {
    const Argument& argument = step.arguments[i];
    return argument.kind == Argument::Kind::constant && argument.constant.toScalar().equal(1);
  };
  return sizes(0) == std::vector<AffineSize>{w[1]} && one(3) && one(4);
}

using Ids = std::vector<ValueId>;

Ids joined(const std::vector<Ids>& lists) {
  Ids all;
  for (const Ids& list : lists) {
    for (const ValueId id : list) all.push_back(id);
  }
  return all;
}

std::vector<ValueId> range(ValueId first, ValueId end) {
  Ids ids;
  for (ValueId id = first; id < end; ++id) ids.push_back(id);
  return ids;
}

Ids forward_inputs(const Graph& graph) {
  return joined({range(Graph::input(0), graph.gradient(0)), range(graph.parameter(0), graph.result(0))});
}
Ids gradients_of_outputs(const Graph& graph) {
  Ids ids;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    if (c10::isFloatingType(graph.outputs[i].dtype)) ids.push_back(graph.gradient(i));
  }
  return ids;
}
Ids backward_inputs(const Graph& graph) {
  return joined({gradients_of_outputs(graph), range(graph.parameter(0), graph.buffer(0)),
                 range(graph.constant(0), graph.field(0)), graph.keep_input, graph.buffers_read_back});
}

Ids factors_or_gradients(const Graph& graph) {
  Ids ids;
  for (std::size_t i = 0; i < graph.gradients.size(); ++i) {
    const Product& product = graph.products[i];
    const bool factors = product.left != kNoValue;
    ids.push_back(factors ? product.left : graph.gradients[i]);
    ids.push_back(product.right);
  }
  return ids;
}

/// Zeroes elements by a mask: the one that it draws, or one that is given.
bool drops(const Step& step) {
  return step.own == Step::Own::dropout || step.own == Step::Own::dropout_apply;
}

c10::IValue taken(std::vector<c10::IValue>& frame, std::size_t slot, bool last) {
  return last ? std::move(frame[slot]) : frame[slot];
}

template <class Element>
c10::List<Element> list_of(std::vector<c10::IValue>& frame,
                           const std::vector<std::pair<std::int32_t, bool>>& slots) {
  c10::List<Element> list;
  list.reserve(slots.size());
  for (const auto& [slot, last] : slots) {
    if (slot < 0) {
      list.push_back(Element());
    } else {
      list.push_back(taken(frame, static_cast<std::size_t>(slot), last).toTensor());
    }
  }
  return list;
}

}  // namespace

std::vector<const Step*> wanted_steps(const Steps& steps, const std::vector<ValueId>& outputs) {
  std::set<ValueId> wanted(outputs.begin(), outputs.end());
  wanted.erase(kNoValue);
  std::vector<const Step*> kept;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (std::none_of(step->results.begin(), step->results.end(),
                     [&](ValueId id) { return wanted.contains(id); })) {
      continue;
    }
    kept.push_back(&*step);
    for (const Argument& argument : step->arguments) {
      wanted.insert(argument.values.begin(), argument.values.end());
    }
    wanted.erase(kNoValue);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

Program::Program(const Source& source, std::int64_t b, c10::Device device, MatrixProducts products)
    : where_(source.where), b_(b), device_(device), products_(products) {
  const c10::InferenceMode normal(false);  // constants outlive the caller's mode
  for (const ValueId id : source.inputs) {
    (void)slot_of(id);
    const ValueType& type = source.values[static_cast<std::size_t>(id)].type;
    input_types_.emplace_back(type.dtype, type.at(b_));
  }
  inputs_ = slots_.size();
  STAGECRAFT_CHECK(inputs_ == source.inputs.size(), "an input is given twice");
  for (const Step* step : wanted_steps(source.steps, source.outputs)) prepare(*step, source.values, device);
  for (const ValueId id : source.outputs) {
    outputs_.push_back(id == kNoValue ? -1 : static_cast<std::int32_t>(slots_.at(id)));
  }
  find_last_reads();
  find_ready();
  find_overwritable(source.values);
}

std::uint32_t Program::slot_of(ValueId id) {
  return slots_.emplace(id, static_cast<std::uint32_t>(slots_.size())).first->second;
}

void Program::prepare(const Step& step, const std::vector<Value>& values, c10::Device device) {
  Instruction instruction;
  instruction.step = &step;
  for (const Argument& argument : step.arguments) {
    const auto position = static_cast<std::uint32_t>(instruction.stack.size());
    instruction.stack.push_back(constant_of(argument, b_, device));
    if (argument.kind == Argument::Kind::value) {
      instruction.reads.push_back({position, slots_.at(argument.values[0]), false});
    } else if (argument.kind == Argument::Kind::values || argument.kind == Argument::Kind::optional_values) {
      ListRead read{position, argument.kind == Argument::Kind::optional_values, {}};
      for (const ValueId id : argument.values) {
        read.slots.emplace_back(id == kNoValue ? -1 : static_cast<std::int32_t>(slots_.at(id)), false);
      }
      instruction.lists.push_back(std::move(read));
    }
  }
  if (step.op) {
    const StepView view(step, values, b_, instruction.stack);
    if (const std::string broken = broken_rule(view); !broken.empty()) {
      throw InputError(step.place, fmt::format("{}: {}", step.name, broken));
    }
    instruction.precautions = precautions_for(view, device);
  }
  for (const ValueId id : step.results) {
    instruction.results.push_back(id == kNoValue ? -1 : static_cast<std::int32_t>(slot_of(id)));
    instruction.types.push_back(id == kNoValue ? ValueType{} : values[static_cast<std::size_t>(id)].type);
  }
  instruction.multiplies = products_ != MatrixProducts::blas && is_product(step, values);
  instructions_.push_back(std::move(instruction));
}

void Program::find_last_reads() {
  std::vector<bool> read(slots_.size(), false);
  for (const std::int32_t output : outputs_) {
    if (output >= 0) read[static_cast<std::size_t>(output)] = true;
  }
  const auto is_last = [&](std::size_t slot) {
    const bool last = !read[slot];
    read[slot] = true;
    return last;
  };
  // Backwards: also within a step, where lists are taken first, then single values in their order.
  for (auto instruction = instructions_.rbegin(); instruction != instructions_.rend(); ++instruction) {
    for (std::int32_t& result : instruction->results) {
      if (result >= 0 && !read[static_cast<std::size_t>(result)]) result = -1;
    }
    for (auto it = instruction->reads.rbegin(); it != instruction->reads.rend(); ++it) {
      it->last = is_last(it->slot);
    }
    for (auto list = instruction->lists.rbegin(); list != instruction->lists.rend(); ++list) {
      for (auto it = list->slots.rbegin(); it != list->slots.rend(); ++it) {
        if (it->first >= 0) it->second = is_last(static_cast<std::size_t>(it->first));
      }
    }
  }
  for (std::uint32_t input = 0; input < inputs_; ++input) {
    if (!read[input]) unused_.push_back(input);
  }
}

void Program::find_ready() {
  std::vector<std::size_t> settled(slots_.size(), 0);  // the instructions that make or read a slot
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& instruction = instructions_[i];
    for (const std::int32_t slot : instruction.results) {
      if (slot >= 0) settled[static_cast<std::size_t>(slot)] = i + 1;
    }
    for (const Read& read : instruction.reads) settled[read.slot] = i + 1;
    for (const ListRead& list : instruction.lists) {
      for (const auto& [slot, last] : list.slots) {
        if (slot >= 0) settled[static_cast<std::size_t>(slot)] = i + 1;
      }
    }
  }
  ready_.resize(instructions_.size() + 1);
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i] < 0) continue;
    ready_[settled[static_cast<std::size_t>(outputs_[i])]].push_back(static_cast<std::uint32_t>(i));
  }
}

void Program::find_overwritable(const std::vector<Value>& values) {
  for (Instruction& instruction : instructions_) {
    const Step& step = *instruction.step;
    if (!drops(step) && instruction.results.size() != 1) continue;
    for (const Read& read : instruction.reads) {
      const ValueId argument = step.arguments[read.position].values[0];
      const ValueType& type = values[static_cast<std::size_t>(argument)].type;
      if (read.last && type.dtype == instruction.types[0].dtype &&
          type.at(b_) == instruction.types[0].at(b_)) {
        instruction.dying.push_back(read.position);
      }
    }
    if (!instruction.dying.empty()) instruction.overwrites = overwriting_form_of(step.name);
  }
}

void Program::execute(std::vector<c10::IValue>& frame, const RandomKey& key, const AfterStep& after) const {
  check_inputs(frame);
  for (const std::uint32_t unused : unused_) frame[unused] = {};
  frame.resize(slots_.size());
  std::vector<c10::IValue> stack;
  stack.reserve(kUsualArguments);
  const bool checks = !checked_.load(std::memory_order_acquire);
  if (after) after(0);
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    const Instruction& instruction = instructions_[i];
    try {
      run_one(instruction, frame, stack, key);
    } catch (const std::exception&) {
      refused(*instruction.step);
    }
    if (checks) check_types(instruction, frame);
    if (after) after(i + 1);
  }
  checked_.store(true, std::memory_order_release);
}

/// Within a handler. What a listed operator throws is about its arguments, which the graph says. Not so where
/// memory or a device failed, nor what we throw ourselves.
void Program::refused(const Step& step) const {
  const auto throw_input_error = [&](const std::string& what) {
    throw InputError(step.place, fmt::format("{}: {}", step.name, what));
  };
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (c10::Error& error) {
    if (!step.op || is_of_a_device(error)) {
      error.add_context(fmt::format("{}, {}", where_, step.name));
      throw;
    }
    throw_input_error(one_line(error));
  } catch (const InputError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {  // of libraries that LibTorch calls
    if (!step.op) throw;
    throw_input_error(error.what());
  }
  std::abort();
}

Tensors Program::run(std::vector<c10::IValue> frame, const RandomKey& key) const {
  execute(frame, key, nullptr);
  Tensors outputs;
  outputs.reserve(outputs_.size());
  for (const std::int32_t slot : outputs_) {
    outputs.push_back(slot < 0 ? at::Tensor() : frame[static_cast<std::size_t>(slot)].toTensor());
  }
  return outputs;
}

void Program::hand_over(std::vector<c10::IValue> frame, const TakeOutput& take) const {
  execute(frame, {}, [&](std::size_t instructions) {
    for (const std::uint32_t output : ready_[instructions]) {
      take(output, frame[static_cast<std::size_t>(outputs_[output])].toTensor());
    }
    for (const std::uint32_t output : ready_[instructions]) {
      frame[static_cast<std::size_t>(outputs_[output])] = {};
    }
  });
}

void Program::run_one(const Instruction& instruction, std::vector<c10::IValue>& frame,
                      std::vector<c10::IValue>& stack, const RandomKey& key) const {
  const Step& step = *instruction.step;
  stack.assign(instruction.stack.begin(), instruction.stack.end());
  for (const ListRead& list : instruction.lists) {
    stack[list.position] = list.optional ? c10::IValue(list_of<std::optional<at::Tensor>>(frame, list.slots))
                                         : c10::IValue(list_of<at::Tensor>(frame, list.slots));
  }
  for (const Read& read : instruction.reads) stack[read.position] = taken(frame, read.slot, read.last);
  if (instruction.multiplies) {
    stack = {step.name == kMm
                 ? product(products_, stack[0].toTensor(), stack[1].toTensor())
                 : product_plus(products_, stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor())};
  } else if (step.own == Step::Own::none) {
    call(instruction, stack);
    instruction.precautions.settle(stack, instruction.types, b_);
    instruction.precautions.require_success(stack, step);
  } else {
    run_own(instruction, stack, key);
  }
  const std::vector<std::int32_t>& results = instruction.results;
  if (step.returns_list) {
    const c10::List<at::Tensor> list = std::move(stack.at(0)).toTensorList();
    if (list.size() != results.size()) {
      throw InputError(step.place, fmt::format("{} makes {} tensors, the graph says {}", step.name,
                                               list.size(), results.size()));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i] >= 0) frame[static_cast<std::size_t>(results[i])] = list.get(i);
    }
  } else {
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i] >= 0) frame[static_cast<std::size_t>(results[i])] = std::move(stack[i]);
    }
  }
  stack.clear();  // what nobody reads dies here
}

void Program::call(const Instruction& instruction, std::vector<c10::IValue>& stack) const {
  instruction.precautions.take(stack, *instruction.step);
  if (instruction.overwrites) {
    if (std::optional<at::Tensor> found = overwritable(stack, instruction.dying)) {
      stack.emplace_back(*std::move(found));
      instruction.overwrites->callBoxed(stack);
      return;
    }
  }
  instruction.precautions.op->callBoxed(stack);
}

at::Tensor Program::drawn(const Step& step, const ValueType& type, const RandomKey& key) const {
  const RandomStream stream{key, step.stream};
  const std::vector<std::int64_t> shape = type.at(b_);
  if (step.own == Step::Own::uniform) return uniform_numbers(shape, type.dtype, stream, device_);
  if (step.own == Step::Own::normal) return normal_numbers(shape, type.dtype, stream, device_);
  if (step.own == Step::Own::exponential) return exponential_numbers(shape, type.dtype, stream, device_);
  return bernoulli_numbers(shape, type.dtype, step.probability, stream, device_);
}

void Program::run_own(const Instruction& instruction, std::vector<c10::IValue>& stack,
                      const RandomKey& key) const {
  const Step& step = *instruction.step;
  if (step.own == Step::Own::compiled) {
    Tensors given;
    for (c10::IValue& value : stack) given.push_back(std::move(value).toTensor());
    stack.clear();
    for (at::Tensor& made : step.compiled->run(std::move(given))) stack.emplace_back(std::move(made));
    return;
  }
  if (!drops(step)) {
    stack = {drawn(step, instruction.types[0], key)};
    return;
  }
  const Dropout dropout(step.probability, step.stream);
  const bool draws = step.own == Step::Own::dropout;
  if (std::optional<at::Tensor> found = overwritable(stack, instruction.dying)) {
    at::Tensor mask = draws ? dropout.drop_(*found, key) : at::Tensor();
    if (!draws) dropout.apply_(*found, stack[1].toTensor());
    stack = {*std::move(found), std::move(mask)};
    return;
  }
  const at::Tensor x = stack[0].toTensor();
  at::Tensor mask = draws ? dropout.mask(x.sizes(), key, x.device()) : stack[1].toTensor();
  at::Tensor dropped = dropout.apply(x, mask);
  stack = {std::move(dropped), std::move(mask)};
}

/// Rules were held against the declared types: nothing else may come in.
void Program::check_inputs(const std::vector<c10::IValue>& frame) const {
  STAGECRAFT_CHECK(frame.size() == inputs_, where_ + " with other inputs");
  for (std::size_t i = 0; i < frame.size(); ++i) {
    const at::Tensor& given = frame[i].toTensor();
    if (!given.defined()) continue;
    const auto& [dtype, sizes] = input_types_[i];
    STAGECRAFT_CHECK(
        given.scalar_type() == dtype && given.sizes() == sizes,
        fmt::format("{}: input {} is {}{}, expected {}{}", where_, i, dtype_name(given.scalar_type()),
                    shape_text(given.sizes()), dtype_name(dtype), shape_text(sizes)));
  }
}

void Program::check_types(const Instruction& instruction, const std::vector<c10::IValue>& frame) const {
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    if (instruction.results[i] < 0) continue;
    const at::Tensor& made = frame[static_cast<std::size_t>(instruction.results[i])].toTensor();
    const ValueType& type = instruction.types[i];
    const std::vector<std::int64_t> shape = type.at(b_);
    if (made.defined() && made.scalar_type() == type.dtype && made.sizes() == shape) continue;
    const std::string found =
        made.defined() ? fmt::format("{}{}", dtype_name(made.scalar_type()), shape_text(made.sizes()))
                       : "no tensor";
    throw InputError(
        instruction.step->place,
        fmt::format("{}: result {} is {}, its declared type {} is {} for micro-batches of {} samples",
                    instruction.step->name, i, found, type.text(), shape_text(shape), b_));
  }
}

Programs::Programs(const Graph& graph, std::int64_t b, c10::Device device, MatrixProducts products)
    : forward({fmt::format("graph {}, forward", graph.hash), graph.forward, graph.values,
               forward_inputs(graph), joined({graph.forward_outputs, graph.new_buffers})},
              b, device, products),
      forward_keeping(
          {fmt::format("graph {}, forward", graph.hash), graph.forward, graph.values, forward_inputs(graph),
           joined({graph.forward_outputs, graph.new_buffers, graph.keep_input, graph.keep_weight})},
          b, device, products),
      backward_input({fmt::format("graph {}, backward_input", graph.hash), graph.backward_input, graph.values,
                      backward_inputs(graph), joined({graph.input_gradients, graph.hand_on})},
                     b, device, products),
      backward_for_weight(
          {fmt::format("graph {}, backward_input", graph.hash), graph.backward_input, graph.values,
           backward_inputs(graph), joined({Ids(graph.inputs.size(), kNoValue), graph.hand_on})},
          b, device, products),
      backward_weight(
          {fmt::format("graph {}, backward_weight", graph.hash), graph.backward_weight, graph.values,
           joined({graph.keep_weight, graph.hand_on, range(graph.constant(0), graph.field(0))}),
           graph.gradients},
          b, device, products),
      backward_products(
          {fmt::format("graph {}, backward_weight", graph.hash), graph.backward_weight, graph.values,
           joined({graph.keep_weight, graph.hand_on, range(graph.constant(0), graph.field(0))}),
           factors_or_gradients(graph)},
          b, device, products),
      evaluate({fmt::format("graph {}, evaluate", graph.hash), graph.evaluate, graph.evaluate_values,
                forward_inputs(graph), graph.evaluate_outputs},
               b, device, products) {}

const Programs& Replay::at(std::int64_t b, c10::Device device, MatrixProducts products) const {
  const Graph* compiled = compiled_for(b, device);
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<const Programs>& programs =
      programs_[{b, device.type(), device.index(), products, compiled != nullptr}];
  if (programs == nullptr) {
    programs =
        std::make_unique<const Programs>(compiled == nullptr ? *graph_ : *compiled, b, device, products);
  }
  return *programs;
}

void Replay::use(std::shared_ptr<const CompiledFolder> compiled, UseCompiled how) {
  compiled_ = std::move(compiled);
  how_ = how;
  if (const auto its = compiled_->graphs.find(graph_->hash); its != compiled_->graphs.end()) {
    by_size_ = &its->second;
  }
}

const Graph* Replay::compiled_for(std::int64_t b, c10::Device device) const {
  if (by_size_ == nullptr || !device.is_cpu() || at::get_num_threads() != compiled_->made_for.threads)
    return nullptr;
  const auto graph = by_size_->find(b);
  return graph == by_size_->end() ? nullptr : graph->second.get();
}

void Replay::check_fit(std::int64_t b, c10::Device device) const {
  if (how_ != UseCompiled::require || compiled_for(b, device) != nullptr) return;
  const CompiledFor wanted{{b}, at::get_num_threads()};
  throw InputError(
      {compiled_->file, ""},
      fmt::format("has no code of graph {} for {} on {}; it is for {} on the CPU; compile it for this "
                  "run, or set model.compiled to \"allow\"",
                  graph_->hash, wanted.text(), device.str(), compiled_->made_for.text()));
}

}  // namespace stagecraft::captured
