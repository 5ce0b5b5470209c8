#include "test/support/planted_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace stagecraft::test {
namespace {

class PlantedLayer final : public Layer {
 public:
  PlantedLayer(std::int64_t features, std::vector<Planted> planted)
      : Layer("planted", {.type = "planted", .parameters = {{"bias", {features}, {}}}, .repeats = false}),
        features_(features),
        planted_(std::move(planted)) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    const bool chosen = context.mode == Mode::train && context.key.micro_batch == 0;
    const std::int64_t step = chosen ? static_cast<std::int64_t>(context.key.step) : -1;
    fail(step, Planted::Where::failure);
    if (kept != nullptr) kept->for_input = {at::scalar_tensor(step, at::kLong)};
    return spoiled(input + weights.parameters[0], step, Planted::Where::output);
  }
  at::Tensor backward_input(const Tensors& /*parameters*/, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    kept.for_weight = {std::exchange(kept.for_input, {}).front(), grad_output};
    if (!needs_input_gradient) return {};
    return spoiled(grad_output, step_of(kept), Planted::Where::input_gradient);
  }
  void backward_weight(Kept& kept, GradientSink& sink) const override {
    fail(step_of(kept), Planted::Where::weight_failure);
    const at::Tensor sum = kept.for_weight[1].reshape({-1, features_}).sum(0);
    sink.add(0, spoiled(sum, step_of(kept), Planted::Where::weight_gradient));
    kept.clear();
  }

 private:
  static std::int64_t step_of(const Kept& kept) { return kept.for_weight[0].item<std::int64_t>(); }
  void fail(std::int64_t step, Planted::Where where) const {
    for (const Planted& planted : planted_) {
      if (planted.step == step && planted.where == where) throw std::runtime_error("planted to fail");
    }
  }
  [[nodiscard]] at::Tensor spoiled(at::Tensor tensor, std::int64_t step, Planted::Where where) const {
    for (const Planted& planted : planted_) {
      if (planted.step == step && planted.where == where) tensor = tensor + planted.value;
    }
    return tensor;
  }

  std::int64_t features_;
  std::vector<Planted> planted_;
};

}  // namespace

void plant(Model& model, int at, std::vector<Planted> planted) {
  const std::int64_t features = boundaries(model, 1)[static_cast<std::size_t>(at)].shape.back();
  model.layers.insert(model.layers.begin() + at,
                      std::make_shared<PlantedLayer>(features, std::move(planted)));
  model.ties = ties_between(model.layers);
  model.gradient_from = first_trained(model.layers);
}

std::string planted_words(const std::vector<Planted>& planted, int at) {
  constexpr const char* kWhere[] = {"output", "input gradient", "weight gradient", "failure",
                                    "weight failure"};
  std::string words;
  for (const Planted& one : planted) {
    words += fmt::format(" planted {} {} at step {} before layer {}", kWhere[static_cast<int>(one.where)],
                         one.value, one.step, at);
  }
  return words;
}

}  // namespace stagecraft::test
