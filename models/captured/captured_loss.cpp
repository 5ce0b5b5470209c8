#include "stagecraft/models/captured/captured_loss.h"

#include "stagecraft/base/error.h"
#include "stagecraft/models/captured/graph_estimate.h"
#include "stagecraft/models/layers/functional.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <utility>

namespace stagecraft {
namespace {

using captured::FolderLoss;
using captured::Graph;
using captured::ModelFolder;
using captured::Programs;

/// Kept: what the graph keeps, and on the CPU the share and the micro-batch's size. Of a share of 0, where the
/// loss may be no number, the latter alone.
class CapturedLoss final : public Loss {
 public:
  explicit CapturedLoss(std::shared_ptr<const ModelFolder> folder)
      : Loss(folder->loss->reduction),
        folder_(std::move(folder)),
        loss_(*folder_->loss),
        graph_(loss_.replay->graph()) {
    for (const std::string& name : loss_.constants) constants_.push_back(folder_->weights.at(name));
  }

  std::vector<std::string> fields() const override { return loss_.fields; }
  std::string details() const override { return "graph " + graph_.hash; }
  std::optional<LayerEstimate> estimate(std::int64_t micro_batch) const override {
    return captured::estimate(graph_, micro_batch, /*needs_input_gradient=*/true);
  }

  LossValue forward(const at::Tensor& output, const LossData& data, double share, Kept* kept,
                    bool) const override {
    const std::optional<std::int64_t> b = graph_.inputs[0].samples_of(output.sizes());
    STAGECRAFT_CHECK(b && output.scalar_type() == graph_.inputs[0].dtype,
                     fmt::format("the loss reads {}, not {}", graph_.inputs[0].text(),
                                 functional::shape_text(output.sizes())));
    const at::Tensor about = at::tensor({share, static_cast<double>(*b)}, at::kDouble);
    if (share == 0) {
      if (kept != nullptr) kept->for_input = {about};
      return {at::zeros({}, output.options().dtype(at::kDouble)), {}};
    }
    std::vector<c10::IValue> frame;
    frame.emplace_back(output);
    for (const at::Tensor& constant : constants_) frame.emplace_back(constant.to(output.device()));
    for (const std::string& name : loss_.fields) frame.emplace_back(data.fields->at(name));
    loss_.replay->check_fit(*b, output.device());
    const Programs& programs = loss_.replay->at(*b, output.device());
    Tensors made = (kept != nullptr ? programs.forward_keeping : programs.evaluate).run(std::move(frame), {});
    if (kept != nullptr) {
      kept->for_input.assign(std::make_move_iterator(made.begin() + 1), std::make_move_iterator(made.end()));
      kept->for_input.push_back(about);
    }
    return {made.front().to(at::kDouble).mul_(share), {}};
  }

  at::Tensor backward(Kept& kept, double scale) const override {
    Tensors taken = std::exchange(kept.for_input, {});
    const at::Tensor about = std::move(taken.back());
    taken.pop_back();
    const double share = about[0].item<double>();
    const auto b = about[1].item<std::int64_t>();
    const at::Device device = taken.empty() ? at::Device(at::kCPU) : taken.front().device();
    if (share == 0)
      return at::zeros(graph_.inputs[0].at(b), at::TensorOptions(device).dtype(graph_.inputs[0].dtype));
    std::vector<c10::IValue> frame;
    frame.emplace_back(at::full({}, share * scale, at::TensorOptions(device).dtype(graph_.outputs[0].dtype)));
    for (const at::Tensor& constant : constants_) frame.emplace_back(constant.to(device));
    for (at::Tensor& tensor : taken) frame.emplace_back(std::move(tensor));
    return loss_.replay->at(b, device).backward_input.run(std::move(frame), {}).front();
  }

  bool counts_units() const override { return loss_.units.has_value(); }
  std::int64_t units(const FieldTensors& fields) const override {
    const at::Tensor& counted = fields.at(loss_.units->field);
    const std::int64_t from = loss_.units->from;
    const at::Tensor behind = from == 0 ? counted : counted.narrow(-1, from, counted.size(-1) - from);
    return behind.ne(loss_.units->ignore).sum().item<std::int64_t>();
  }

  /// For people: whether what it means over are tokens.
  Targets targets() const override {
    const captured::ValueType& first = graph_.fields.front();
    if (c10::isFloatingType(first.dtype)) return Targets::values;
    return first.sizes.size() > 1 ? Targets::tokens : Targets::classes;
  }
  std::string misfit(const std::vector<std::int64_t>&, const SampleSpec&) const override { return ""; }

 private:
  std::shared_ptr<const ModelFolder> folder_;
  const FolderLoss& loss_;
  const Graph& graph_;
  Tensors constants_;
};

}  // namespace

std::shared_ptr<const Loss> make_captured_loss(std::shared_ptr<const ModelFolder> folder) {
  return std::make_shared<CapturedLoss>(std::move(folder));
}

}  // namespace stagecraft
