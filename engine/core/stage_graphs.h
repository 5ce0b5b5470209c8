#pragma once

// A stage's work on a device, recorded once and repeated (engine/device/graphs.h). Forwards, recomputes and
// backwards are recorded; transfers, sums over replicas, updates and the loss' report are not.
//
// A micro-batch that is forwarded takes a slot, and gives it back when its backward is over: as many slots as
// micro-batches were ever in flight. A slot has a pool of memory, which holds what forwards keep for
// backwards. Its recordings are passes: the parts of one way through the stage (forward, perhaps recompute,
// backward or its halves), distinguished by everything they do not read from memory: shapes and the addresses
// of the weights' version. What differs from micro-batch to micro-batch lies in the slot's memory: their name,
// the loss' share and scale. A pass is recorded when it comes for the second time; before, it
// runs as it is, which warms LibTorch up.
//
// Why a repeated part finds what it needs: inputs are copied to where it was recorded to read them; what it
// writes for others is copied out; sums and weights have the addresses they had, and what the micro-batch has
// kept lies where it lay, or the part is run as it is. Within a slot, parts that leave something for later
// ones are recorded in one go, behind each other, so that the pool gives none of them memory that another
// still needs; backwards that leave nothing share one pool of the stage's.
//
// What a device cannot record is run as it is from then on. Recordings stay until the stage goes: one that went
// inside a step would wait for the whole device (schedules/rules/device_waits.h).

#include "engine/core/in_flight.h"
#include "engine/device/graphs.h"
#include "models/layers/gradient_accumulator.h"

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stagecraft {

/// Of work: equal keys ask a device for the same, at the same addresses.
class GraphKey {
 public:
  GraphKey& add(std::uint64_t number) {
    words_.push_back(number);
    return *this;
  }
  GraphKey& add(double number);
  /// Its address.
  GraphKey& add(const at::Tensor& tensor);
  auto operator<=>(const GraphKey&) const = default;

 private:
  std::vector<std::uint64_t> words_;
};

/// How often a stage's parts ran which way.
struct GraphCounts {
  std::int64_t recorded = 0;
  std::int64_t repeated = 0;  ///< the first time of a recording counted in
  std::int64_t plain = 0;
  std::int64_t crowded = 0;  ///< micro-batches for which there was no room among the recordings
  std::string refusal;       ///< why the device does not record; empty: it does
};

class StageGraphs {
 public:
  using Accumulators = std::vector<GradientAccumulator>;
  /// Reads `inputs`, changes `work` from what the part finds to what it leaves, returns what it makes for
  /// others. The host's side may be done again.
  using Part = std::function<Tensors(Tensors inputs, InFlight& work)>;
  enum class PartKind : std::uint8_t { forward, recompute, backward_input, backward_weight, backward };
  struct Pass;

  StageGraphs(std::shared_ptr<DeviceGraphs> graphs, at::Device device);
  ~StageGraphs();
  StageGraphs(const StageGraphs&) = delete;
  StageGraphs& operator=(const StageGraphs&) = delete;

  /// The loss' share and scale.
  using Weights = std::array<double, 2>;

  /// For a micro-batch whose forward comes next. Null: it runs as it is. `name`: step and micro-batch, as
  /// RandomKey::on_device holds them. `weights`: where the stage has a loss that reads them from memory.
  [[nodiscard]] Pass* begin(const GraphKey& key, std::int64_t name,
                            const std::optional<Weights>& weights = std::nullopt);
  /// Where the pass' name lies.
  [[nodiscard]] static const at::Tensor& name_of(const Pass& pass);
  /// As LossData has them; undefined where begin() was given none.
  [[nodiscard]] static const at::Tensor& weights_of(const Pass& pass);
  /// Its last backward is over, and what it kept is gone.
  void end(Pass& pass);

  /// One part of a pass, in the order of PartKind; by recording where that is right, else as it is. `sums`:
  /// what a backward adds to, null where it does not. The tensors returned have memory of their own.
  [[nodiscard]] Tensors run(Pass& pass, PartKind kind, Tensors inputs, InFlight& work, Accumulators* sums,
                            const Part& part);

  [[nodiscard]] const GraphCounts& counts() const { return counts_; }

 private:
  struct Recorded;
  struct Slot;
  /// One that has the pass already, if there is one. Null: the pass would be one too many.
  [[nodiscard]] Slot* idle_slot(const GraphKey& key);
  /// Null where the device cannot.
  [[nodiscard]] Recorded* record(Pass& pass, const GraphKey& key, DeviceGraphs::Pool pool,
                                 const Tensors& inputs, InFlight& work, Accumulators* sums, const Part& part);

  std::shared_ptr<DeviceGraphs> graphs_;
  at::Device device_;
  DeviceGraphs::Pool backwards_;  ///< of parts that leave nothing
  std::vector<std::unique_ptr<Slot>> slots_;
  std::set<GraphKey> seen_;
  std::size_t passes_ = 0;
  GraphCounts counts_;
};

}  // namespace stagecraft
