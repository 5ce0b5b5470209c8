#pragma once

// Losses. The one scaling rule of Stagecraft: each micro-batch is weighted, here, by its share of the
// mini-batch; gradients are summed and never rescaled afterwards. `share` is (samples or tokens of this
// micro-batch) / (of the mini-batch) for a mean reduction and 1 for a sum, so the losses of a mini-batch's
// micro-batches simply add up.
//
// Built-in and added ones:
//
//   losses().add<HingeSettings>("hinge", make_hinge);

#include "base/ids.h"
#include "base/registry.h"
#include "models/layers/layer.h"
#include "models/tensors/batch_fields.h"
#include "models/tensors/sample.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

enum class Reduction : std::uint8_t { mean, sum };
template <>
inline constexpr std::array enum_names<Reduction>{"mean", "sum"};

/// What a micro-batch contributes to its mini-batch's report: single numbers in double precision, on the
/// output's device, so that nobody waits for the device before they are read.
struct LossValue {
  at::Tensor loss;     ///< weighted by `share`: adds up over micro-batches
  at::Tensor correct;  ///< right predictions; undefined where they are not counted
  at::Tensor terms{};  ///< [Loss::terms().size()], weighted as the loss is; undefined where there are none
};

class LossFactor;

/// What an output is compared with: the data's targets, or what a loss reads in their place.
struct LossData {
  LossData(at::Tensor its_targets) : targets(std::move(its_targets)) {}  // NOLINT(*-explicit-*)
  LossData(const FieldTensors& its_fields) : fields(&its_fields) {}      // NOLINT(*-explicit-*)
  at::Tensor targets{};
  const FieldTensors* fields = nullptr;  ///< has those of Loss::fields(), where it has any
  /// [share, scale] in double precision, on the device and until the backward is over: in place of the numbers
  /// that forward and backward get, for a loss that reads_weights(). Undefined: there are those alone.
  at::Tensor weights{};
};

/// The last thing the last stage does. Not a Layer: it takes targets and yields a number. Profiled as a layer
/// named "loss". Immutable; used by many ranks and micro-batches at once.
class Loss {
 public:
  explicit Loss(Reduction reduction) : reduction_(reduction) {}
  virtual ~Loss() = default;
  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;

  /// Loss of `output` against `data`, for a micro-batch. `kept` (null: no backward) gets what backward
  /// needs. `count_correct`: only where it is reported (validation).
  [[nodiscard]] virtual LossValue forward(const at::Tensor& output, const LossData& data, double share,
                                          Kept* kept, bool count_correct) const = 0;
  /// d loss / d output, `share` included, times `scale` (loss scaling), in the output's dtype. `kept` is
  /// empty on return.
  [[nodiscard]] virtual at::Tensor backward(Kept& kept, double scale = 1) const = 0;

  /// Whether it takes share and scale from LossData::weights where they lie there (models/losses/loss_factor.h):
  /// to the bit what it makes of the same numbers, but for a share of 0, which may have a way of its own. A
  /// device's recordings then serve all shares and scales; of other losses each pair has its own.
  [[nodiscard]] virtual bool reads_weights() const { return false; }

  /// Fields of the batch that it reads, by the model's names, in place of the targets.
  [[nodiscard]] virtual std::vector<std::string> fields() const { return {}; }
  /// Whether it reads the data's targets: one without fields may read the output alone.
  [[nodiscard]] virtual bool reads_targets() const { return fields().empty(); }
  /// Whether a batch's is another than what its micro-batches' add up to: it compares samples with each other,
  /// or divides by what only the whole batch has.
  [[nodiscard]] virtual bool is_of_whole_batch() const { return false; }
  /// What the micro-batch weighs, where samples weigh differently: targets that are not padding. Shares are
  /// then of units. `fields` are on the CPU.
  [[nodiscard]] virtual bool counts_units() const { return false; }
  [[nodiscard]] virtual std::int64_t units(const FieldTensors& fields) const;

  /// What it can use of the numbers of its fields, or of the targets of such samples.
  [[nodiscard]] virtual std::vector<NumberCheck> number_checks(const SampleSpec& sample) const {
    (void)sample;
    return {};
  }

  /// What a micro-batch would take, as LayerFacts::estimate says it; absent where only a run can tell.
  [[nodiscard]] virtual std::optional<LayerEstimate> estimate(std::int64_t micro_batch) const {
    (void)micro_batch;
    return std::nullopt;
  }

  /// Names of the numbers that it reports beside the loss, such as its parts: LossValue::terms in their order.
  /// Nothing is trained by them. As models/losses/term_names.h has them, none twice.
  [[nodiscard]] virtual const std::vector<std::string>& terms() const;

  /// Of a model's own loss: what tells it from another. In fingerprints.
  [[nodiscard]] virtual std::string details() const { return ""; }

  /// The targets it is for.
  [[nodiscard]] virtual Targets targets() const = 0;
  /// What it needs of a model's output, such as "[10 classes]", where an output of `shape` (of one sample)
  /// does not do for `sample`; empty where it does.
  [[nodiscard]] virtual std::string misfit(const std::vector<std::int64_t>& shape,
                                           const SampleSpec& sample) const = 0;
  /// Whether validation reports an accuracy: right predictions per sample, or per token.
  [[nodiscard]] virtual bool has_accuracy() const { return false; }

  [[nodiscard]] Reduction reduction() const { return reduction_; }

 protected:
  /// What a sum over `terms` terms is multiplied by, so that the loss and its gradient carry share and mean.
  [[nodiscard]] double factor(double share, std::int64_t terms) const {
    return reduction_ == Reduction::mean ? share / static_cast<double>(terms) : share;
  }
  [[nodiscard]] LossFactor factor(const LossFactor& share, std::int64_t terms) const;

 private:
  Reduction reduction_;
};

/// Numbers of a loss report: the loss, the right predictions, then the terms.
[[nodiscard]] inline std::size_t loss_numbers(const Loss& loss) { return 2 + loss.terms().size(); }
[[nodiscard]] inline Bytes loss_report_bytes(const Loss& loss) {
  return Bytes{static_cast<std::int64_t>(loss_numbers(loss) * sizeof(double))};
}

struct LossKind {
  using Site = Reduction;
  using Product = std::shared_ptr<const Loss>;
  static constexpr const char* kWhat = "loss";
  static Registry<LossKind>& registry();
};
[[nodiscard]] inline Registry<LossKind>& losses() { return LossKind::registry(); }

/// The `loss` part of a config.
struct LossConfig {
  Named<LossKind> type;
  Reduction reduction = Reduction::mean;

  /// Whatever it throws names the loss.
  [[nodiscard]] std::shared_ptr<const Loss> make() const;
};
void describe(Fields& f, LossConfig& c);

}  // namespace stagecraft
