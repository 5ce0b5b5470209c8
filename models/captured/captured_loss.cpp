#include "models/captured/captured_loss.h"

#include "base/error.h"
#include "models/captured/replay/graph_estimate.h"
#include "models/captured/replay/index_checks.h"
#include "models/captured/replay/repeats.h"
#include "models/losses/loss_factor.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace stagecraft {
namespace {

using captured::FolderLoss;
using captured::Graph;
using captured::ModelFolder;
using captured::Programs;

/// Kept: what the graph keeps, and on the CPU the share and the micro-batch's size; apart, the weights where they
/// lie on the device. Of a share of 0, where the loss may be no number, share and size alone. Samples of several
/// lengths have a graph each.
class CapturedLoss final : public Loss, public captured::OfGraphs {
 public:
  explicit CapturedLoss(const std::shared_ptr<const ModelFolder>& folder)
      : Loss(folder->loss->reduction), loss_(*folder->loss), forms_{Form(folder)} {
    for (const auto& [length, shorter] : folder->shorter) forms_.emplace_back(shorter);
  }

  std::vector<std::string> fields() const override { return loss_.fields; }
  bool reads_targets() const override { return false; }
  const std::vector<std::string>& terms() const override { return loss_.terms; }
  bool is_of_whole_batch() const override { return loss_.of_whole_batch; }
  std::vector<const captured::Graph*> graphs() const override {
    std::vector<const captured::Graph*> all;
    for (const Form& form : forms_) all.push_back(&form.graph());
    return all;
  }
  std::vector<NumberCheck> number_checks(const SampleSpec&) const override {
    std::vector<NumberCheck> checks;
    for (const Form& form : forms_) {
      for (NumberCheck& check :
           captured::index_checks(form.folder, form.graph(), {{}, form.loss().fields, form.constants})) {
        if (!check.field.empty()) checks.push_back(std::move(check));
      }
    }
    return checks;
  }
  std::string details() const override {
    std::string details;
    for (const Form& form : forms_) details += (details.empty() ? "graph " : ", ") + form.graph().hash;
    return details;
  }
  std::optional<LayerEstimate> estimate(std::int64_t micro_batch) const override {
    return captured::estimate(forms_.front().graph(), micro_batch, /*needs_input_gradient=*/true);
  }

  LossValue forward(const at::Tensor& output, const LossData& data, double share, Kept* kept,
                    bool) const override {
    const std::size_t number = form_for(output, *data.fields);
    const Form& form = forms_[number];
    const captured::ValueType& type = form.graph().inputs[0];
    const std::optional<std::int64_t> b = type.samples_of(output.sizes());
    STAGECRAFT_CHECK(b && output.scalar_type() == type.dtype,
                     fmt::format("the loss reads {}, not {}", type.text(), shape_text(output.sizes())));
    const at::Tensor about = at::tensor({share, static_cast<double>(*b)}, at::kDouble);
    if (kept != nullptr) kept->form = number;
    if (share == 0) {
      if (kept != nullptr) kept->for_input = {about};
      const at::TensorOptions numbers = output.options().dtype(at::kDouble);
      return {at::zeros({}, numbers),
              {},
              terms().empty() ? at::Tensor() : at::zeros({count_of_terms()}, numbers)};
    }
    std::vector<c10::IValue> frame;
    frame.emplace_back(output);
    for (const at::Tensor& constant : form.constants) frame.emplace_back(constant.to(output.device()));
    for (const std::string& name : loss_.fields) frame.emplace_back(data.fields->at(name));
    form.loss().replay->check_fit(*b, output.device());
    const Programs& programs = form.loss().replay->at(*b, output.device());
    Tensors made = (kept != nullptr ? programs.forward_keeping : programs.evaluate).run(std::move(frame), {});
    if (kept != nullptr) {
      const auto behind = made.begin() + 1 + count_of_terms();
      kept->for_input.assign(std::make_move_iterator(behind), std::make_move_iterator(made.end()));
      kept->for_input.push_back(about);
      if (data.weights.defined()) kept->for_weight = {data.weights};
    }
    // Not in place: of a loss in double precision the backward may read what the graph made.
    const LossFactor factor = share_in(data.weights, share);
    LossValue value{.loss = factor.times(made.front().to(at::kDouble)), .correct = {}};
    if (!terms().empty()) {
      Tensors numbers;
      for (std::int64_t i = 1; i <= count_of_terms(); ++i) {
        numbers.push_back(made[static_cast<std::size_t>(i)].to(at::kDouble));
      }
      value.terms = at::stack(numbers);
      factor.multiply(value.terms);
    }
    return value;
  }

  at::Tensor backward(Kept& kept, double scale) const override {
    const Form& form = forms_.at(kept.form);
    const Graph& graph = form.graph();
    Tensors taken = std::exchange(kept.for_input, {});
    const at::Tensor about = std::move(taken.back());
    taken.pop_back();
    const double share = about[0].item<double>();
    const Tensors apart = std::exchange(kept.for_weight, {});
    const at::Tensor weights = apart.empty() ? about[0] : apart.front();
    const auto b = about[1].item<std::int64_t>();
    const at::Device device = taken.empty() ? at::Device(at::kCPU) : taken.front().device();
    if (share == 0)
      return at::zeros(graph.inputs[0].at(b), at::TensorOptions(device).dtype(graph.inputs[0].dtype));
    std::vector<c10::IValue> frame;
    frame.emplace_back((kept_share(weights) * kept_scale(weights, scale))
                           .as(at::TensorOptions(device).dtype(graph.outputs[0].dtype)));
    for (std::size_t i = 1; i < graph.outputs.size(); ++i) {
      if (c10::isFloatingType(graph.outputs[i].dtype))
        frame.emplace_back(at::Tensor());  // terms have no gradient
    }
    for (const at::Tensor& constant : form.constants) frame.emplace_back(constant.to(device));
    for (at::Tensor& tensor : taken) frame.emplace_back(std::move(tensor));
    return form.loss().replay->at(b, device).backward_input.run(std::move(frame), {}).front();
  }

  bool reads_weights() const override { return true; }
  bool counts_units() const override { return loss_.units.has_value(); }
  std::int64_t units(const FieldTensors& fields) const override {
    const at::Tensor& counted = fields.at(loss_.units->field);
    const std::int64_t from = loss_.units->from;
    const at::Tensor behind = from == 0 ? counted : counted.narrow(-1, from, counted.size(-1) - from);
    return behind.ne(loss_.units->ignore).sum().item<std::int64_t>();
  }

  /// For people: whether what it means over are tokens.
  Targets targets() const override {
    const std::vector<captured::ValueType>& fields = forms_.front().graph().fields;
    if (fields.empty()) return Targets::none;
    const captured::ValueType& first = fields.front();
    if (c10::isFloatingType(first.dtype)) return Targets::values;
    return first.sizes.size() > 1 ? Targets::tokens : Targets::classes;
  }
  std::string misfit(const std::vector<std::int64_t>&, const SampleSpec&) const override { return ""; }

 private:
  struct Form {
    explicit Form(std::shared_ptr<const ModelFolder> its_folder) : folder(std::move(its_folder)) {
      for (const std::string& name : loss().constants) constants.push_back(folder->weights.at(name));
    }
    [[nodiscard]] const FolderLoss& loss() const { return *folder->loss; }
    [[nodiscard]] const Graph& graph() const { return loss().replay->graph(); }
    std::shared_ptr<const ModelFolder> folder;
    Tensors constants;
  };

  [[nodiscard]] std::int64_t count_of_terms() const { return static_cast<std::int64_t>(loss_.terms.size()); }

  /// The first where none fits: it says what does not.
  std::size_t form_for(const at::Tensor& output, const FieldTensors& fields) const {
    const auto found = std::find_if(forms_.begin(), forms_.end(), [&](const Form& form) {
      if (!form.graph().inputs[0].samples_of(output.sizes())) return false;
      for (std::size_t i = 0; i < loss_.fields.size(); ++i) {
        if (!form.graph().fields[i].samples_of(fields.at(loss_.fields[i]).sizes())) return false;
      }
      return true;
    });
    return static_cast<std::size_t>(found - forms_.begin()) % forms_.size();
  }

  const FolderLoss& loss_;  ///< the whole length's
  std::vector<Form> forms_;
};

}  // namespace

std::shared_ptr<const Loss> make_captured_loss(const std::shared_ptr<const ModelFolder>& folder) {
  return std::make_shared<CapturedLoss>(folder);
}

}  // namespace stagecraft
