#pragma once

// Runs a graph's steps through LibTorch's dispatcher. A program is one part of a graph prepared for one size
// of micro-batch and one device: operators looked up, constants and sizes in place, and for each value the
// step that reads it last, where it dies. Steps whose results nobody wants are left out.
//
// Programs are immutable: ranks that are threads share them.

#include "models/captured/compiled/compiled_runs.h"
#include "models/captured/format/graph.h"
#include "models/captured/replay/precautions.h"
#include "models/layers/layer.h"
#include "models/tensors/matrix_products.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft::captured {

/// Of steps, those with a result that an output or a later step reads.
[[nodiscard]] std::vector<const Step*> wanted_steps(const Steps& steps, const std::vector<ValueId>& outputs);

class Program {
 public:
  /// What it is made of: `steps` over `values`, which read `inputs` and make `outputs` (kNoValue for none).
  struct Source {
    std::string where;  ///< "graph 3f2a9c0d1b2e4f56, forward", for messages of our own defects
    const Steps& steps;
    const std::vector<Value>& values;
    std::vector<ValueId> inputs, outputs;
  };
  /// Throws InputError where a step breaks a rule (argument_rules.h).
  Program(const Source& source, std::int64_t b, c10::Device device, MatrixProducts products);

  /// Tensors in the order of `outputs`, undefined for kNoValue. `frame` has the inputs in their order; a
  /// tensor that is moved there dies where it is read last. `key` names the masks of dropouts. The first run
  /// compares every result with its declared type and throws InputError where they differ, and so does any run
  /// whose arguments LibTorch refuses.
  [[nodiscard]] Tensors run(std::vector<c10::IValue> frame, const RandomKey& key) const;
  /// Runs a program that draws nothing. Each output is handed over as soon as it is made, with its place
  /// among the outputs, and dies there.
  using TakeOutput = std::function<void(std::size_t, const at::Tensor&)>;
  void hand_over(std::vector<c10::IValue> frame, const TakeOutput& take) const;

 private:
  struct Read {
    std::uint32_t position;  ///< of the argument
    std::uint32_t slot;
    bool last;
  };
  struct ListRead {
    std::uint32_t position;
    bool optional;
    std::vector<std::pair<std::int32_t, bool>> slots;  ///< -1: absent; and whether it is the last read
  };
  struct Instruction {
    const Step* step = nullptr;
    std::vector<c10::IValue> stack;  ///< the arguments that are the same in each run
    std::vector<Read> reads;
    std::vector<ListRead> lists;
    std::vector<std::int32_t> results;  ///< slots; -1: nobody reads it
    std::vector<ValueType> types;
    Precautions precautions;
    bool multiplies = false;                        ///< by `products_`, in place of the step's operator
    std::optional<c10::OperatorHandle> overwrites;  ///< the operator's form that may write over an argument
    std::vector<std::uint32_t>
        dying;  ///< positions of arguments of the result's type that are read last here
  };

  [[nodiscard]] std::uint32_t slot_of(ValueId id);
  void prepare(const Step& step, const std::vector<Value>& values, c10::Device device);
  void find_last_reads();
  void find_ready();
  void find_overwritable(const std::vector<Value>& values);
  using AfterStep = std::function<void(std::size_t instructions)>;
  void execute(std::vector<c10::IValue>& frame, const RandomKey& key, const AfterStep& after) const;
  void run_one(const Instruction& instruction, std::vector<c10::IValue>& frame,
               std::vector<c10::IValue>& stack, const RandomKey& key) const;
  void call(const Instruction& instruction, std::vector<c10::IValue>& stack) const;
  [[noreturn]] void refused(const Step& step) const;
  void run_own(const Instruction& instruction, std::vector<c10::IValue>& stack, const RandomKey& key) const;
  [[nodiscard]] at::Tensor drawn(const Step& step, const ValueType& type, const RandomKey& key) const;
  void check_inputs(const std::vector<c10::IValue>& frame) const;
  void check_types(const Instruction& instruction, const std::vector<c10::IValue>& frame) const;

  std::string where_;
  std::int64_t b_;
  c10::Device device_;
  MatrixProducts products_;
  std::map<ValueId, std::uint32_t> slots_;
  std::size_t inputs_;
  std::vector<std::pair<at::ScalarType, std::vector<std::int64_t>>> input_types_;
  std::vector<Instruction> instructions_;
  std::vector<std::int32_t> outputs_;              ///< slots
  std::vector<std::vector<std::uint32_t>> ready_;  ///< outputs that no step reads behind so many instructions
  std::vector<std::uint32_t> unused_;              ///< inputs that nothing reads
  mutable std::atomic<bool> checked_ = false;
};

/// A graph's programs. Inputs and outputs are in the order given here, gradients of outputs those of the
/// floating-point ones; "given" are the parameters, buffers and
/// constants, and for forwards the fields of the batch.
struct Programs {
  Programs(const Graph& graph, std::int64_t b, c10::Device device, MatrixProducts products);

  Program forward;              ///< inputs, given -> outputs, new buffers
  Program forward_keeping;      ///< the same, and what is kept for the input half, then for the weight half
  Program backward_input;       ///< gradients, parameters, constants, kept, buffers -> gradients, handed on
  Program backward_for_weight;  ///< the same -> no gradients, handed on
  Program backward_weight;      ///< kept, handed on, constants -> gradients
  Program backward_products;    ///< the same -> of each gradient both factors, or itself and nothing
  Program evaluate;             ///< inputs, given -> outputs
};

/// A graph's programs for every size of micro-batch, prepared when one is first asked for.
class Replay {
 public:
  explicit Replay(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {}
  [[nodiscard]] const Graph& graph() const { return *graph_; }
  /// From then on `at` takes the compiled graph where it fits. Before the first `at`.
  void use(std::shared_ptr<const CompiledFolder> compiled, UseCompiled how);
  /// Throws InputError where compiled code is required and there is none for forwards of this size, device and
  /// thread.
  void check_fit(std::int64_t b, c10::Device device) const;
  /// Valid while this is. Any thread; compiled code fits those that compute with as many threads as it does.
  [[nodiscard]] const Programs& at(std::int64_t b, c10::Device device,
                                   MatrixProducts products = MatrixProducts::blas) const;

 private:
  using Key = std::tuple<std::int64_t, c10::DeviceType, c10::DeviceIndex, MatrixProducts, bool>;

  [[nodiscard]] const Graph* compiled_for(std::int64_t b, c10::Device device) const;

  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<const CompiledFolder> compiled_;   ///< null: everything is interpreted
  const CompiledFolder::BySize* by_size_ = nullptr;  ///< this graph's there; null: it has none
  UseCompiled how_ = UseCompiled::off;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::unique_ptr<const Programs>> programs_;
};

}  // namespace stagecraft::captured
