#include "models/captured/layer_of_lengths.h"

#include "models/captured/replay/repeats.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace stagecraft::captured {
namespace {

/// What does not depend on the length is the first form's.
LayerFacts facts_of(const std::vector<LengthForm>& forms) {
  LayerFacts facts = forms.front().layer->facts();
  for (std::size_t i = 1; i < forms.size(); ++i) {
    const LayerFacts& its = forms[i].layer->facts();
    facts.details += "; " + its.details;
    facts.number_checks.insert(facts.number_checks.end(), its.number_checks.begin(), its.number_checks.end());
  }
  return facts;
}

class LayerOfLengths final : public Layer, public OfGraphs {
 public:
  explicit LayerOfLengths(std::vector<LengthForm> forms)
      : Layer(forms.front().layer->name(), facts_of(forms)), forms_(std::move(forms)) {}

  std::vector<const Graph*> graphs() const override {
    std::vector<const Graph*> all;
    for (const LengthForm& form : forms_) {
      const auto* const its = dynamic_cast<const OfGraphs*>(form.layer.get());
      if (its == nullptr) continue;
      for (const Graph* const graph : its->graphs()) all.push_back(graph);
    }
    return all;
  }
  at::Tensor initial_parameter(int parameter) const override { return whole().initial_parameter(parameter); }
  at::Tensor initial_buffer(int buffer) const override { return whole().initial_buffer(buffer); }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    return forms_[form_for({input}, context, kept)].layer->forward(weights, input, context, kept);
  }
  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    return forms_.at(kept.form).layer->backward_input(parameters, grad_output, kept, needs_input_gradient);
  }
  Bundle forward_bundle(const Weights& weights, const Bundle& inputs, const Context& context,
                        Kept* kept) const override {
    return forms_[form_for(inputs, context, kept)].layer->forward_bundle(weights, inputs, context, kept);
  }
  Bundle backward_bundle(const Tensors& parameters, const Bundle& gradients, Kept& kept,
                         bool needs_input_gradient) const override {
    return forms_.at(kept.form).layer->backward_bundle(parameters, gradients, kept, needs_input_gradient);
  }
  void backward_weight(Kept& kept, GradientSink& sink) const override {
    forms_.at(kept.form).layer->backward_weight(kept, sink);
  }

 private:
  const Layer& whole() const { return *forms_.front().layer; }
  /// The first where none is: it says what does not fit.
  std::size_t form_for(const Bundle& inputs, const Context& context, Kept* kept) const {
    const auto found = std::find_if(forms_.begin(), forms_.end(), [&](const LengthForm& form) {
      return form.takes(inputs, context.fields);
    });
    const auto form = static_cast<std::size_t>(found - forms_.begin()) % forms_.size();
    if (kept != nullptr) kept->form = form;
    return form;
  }

  std::vector<LengthForm> forms_;
};

}  // namespace

LayerPtr layer_of_lengths(std::vector<LengthForm> forms) {
  return std::make_shared<const LayerOfLengths>(std::move(forms));
}

}  // namespace stagecraft::captured
