#include "profiler/chain.h"

#include "models/layers/work_text.h"
#include "models/losses/run_loss.h"
#include "models/tensors/libtorch_error.h"

namespace stagecraft {

Chain::Chain(const Model& model, const Loss& loss, std::uint64_t seed, at::Device device,
             std::vector<bool> left_out)
    : model_(model), loss_(loss), seed_(seed), device_(device), left_out_(std::move(left_out)) {
  for (int layer = 0; layer + 1 < rows(); ++layer) {
    if (!runs(layer)) {
      parameters_.emplace_back();
      buffers_.emplace_back();
      copies_.emplace_back();
      gradients_.emplace_back(Tensors{});
      continue;
    }
    named([&] { return work_text(*model.layers[static_cast<std::size_t>(layer)], "weights"); },
          [&] {
            parameters_.push_back(initial_parameters(model, layer, seed, device));
            buffers_.push_back(initial_buffers(model, layer, device));
            copies_.push_back(compute_copy(model, layer, parameters_.back()));
            gradients_.emplace_back(parameters_.back(), model_.precision.products,
                                    model.layers[static_cast<std::size_t>(layer)].get());
          });
  }
  parameters_.emplace_back();
  copies_.emplace_back();
  buffers_.emplace_back();
}

std::string Chain::name(int row) const {
  return is_loss(row) ? "loss" : model_.layers[static_cast<std::size_t>(row)]->name();
}

std::vector<std::string> Chain::fields(int row) const {
  return is_loss(row) ? loss_.fields() : model_.layers[static_cast<std::size_t>(row)]->facts().fields;
}

Bundle Chain::begin(const ChainInput& data, ChainWork& work) const {
  work.kept.resize(static_cast<std::size_t>(rows()));
  if (data.targets.defined()) work.targets = data.targets.to(device_);
  for (const auto& [name, field] : data.fields) work.fields[name] = field.to(device_);
  return {model_.boundary_of(data.inputs).to(device_)};
}

Bundle Chain::forward(int row, const Bundle& input, ChainWork& work, std::uint64_t micro_batch) {
  Kept& kept = work.kept[static_cast<std::size_t>(row)];
  if (is_loss(row)) {
    const LossData data = loss_.reads_targets() ? LossData(work.targets) : LossData(work.fields);
    (void)run_loss(loss_, input.front(), data, /*share=*/1, &kept, /*count_correct=*/false);
    work.targets.reset();
    work.fields.clear();
    return {};
  }
  const auto layer = static_cast<std::size_t>(row);
  const Context context{Mode::train, {seed_, layer, 0, micro_batch}, /*commit_buffers=*/true, &work.fields};
  const Layer& its = *model_.layers[layer];
  return named([&] { return work_text(its, "forward", input.front()); },
               [&] {
                 return contiguous(its.forward_bundle({copies_[layer], buffers_[layer]}, input, context,
                                                      frozen(row) ? nullptr : &kept));
               });
}

Bundle Chain::backward_input(int row, const Bundle& gradients, ChainWork& work) const {
  Kept& kept = work.kept[static_cast<std::size_t>(row)];
  if (is_loss(row)) return {run_loss_backward(loss_, kept)};
  const auto layer = static_cast<std::size_t>(row);
  const Layer& its = *model_.layers[layer];
  return named([&] { return work_text(its, "backward", gradients.front()); },
               [&] {
                 return contiguous(its.backward_bundle(copies_[layer], gradients, kept,
                                                       /*needs_input_gradient=*/row > model_.gradient_from));
               });
}

void Chain::backward_weight(int row, ChainWork& work) {
  const auto layer = static_cast<std::size_t>(row);
  const Layer& its = *model_.layers[layer];
  named([&] { return work_text(its, "backward of its weights"); },
        [&] { its.backward_weight(work.kept[layer], gradients_[layer]); });
}

void Chain::update(int row, const Update& update) {
  const auto layer = static_cast<std::size_t>(row);
  named([&] { return work_text(*model_.layers[layer], "update"); },
        [&] { update(row, parameters_[layer], gradients_[layer].gradients()); });
  if (!model_.precision.mixed()) return;
  for (std::size_t i = 0; i < copies_[layer].size(); ++i) copies_[layer][i].copy_(parameters_[layer][i]);
}

void Chain::clear_gradients() {
  for (GradientAccumulator& gradient : gradients_) gradient.clear();
}

}  // namespace stagecraft
