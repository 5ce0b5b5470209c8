#include "test/support/oracle.h"

#include "engine/clipping.h"
#include "models/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace stagecraft::test {
namespace {

/// One micro-batch of a stretch between drain points.
struct Piece {
  std::int64_t step, epoch, first, count;
  std::int64_t number_in_step, samples_of_step;
  bool ends_step;
};

class Oracle {
 public:
  Oracle(const Model& model, const Loss& loss, const Dataset& data, const OracleRun& run)
      : model_(model), loss_(loss), data_(data), run_(run) {
    const int layers = static_cast<int>(model.layers.size());
    for (int layer = 0; layer < layers; ++layer) {
      weights_.push_back({{0, initial_parameters(model, layer, run.seed)}});
      sums_.emplace_back(weights_.back()[0]);
      result_.buffers.push_back(initial_buffers(model, layer));
      int stage = 0;
      while (stage + 1 < static_cast<int>(run.first_layers.size()) && run.first_layers[stage + 1] <= layer) {
        ++stage;
      }
      delay_.push_back(run.updates_late ? 0 : run.delay[stage]);
    }
    result_.optimizer.resize(model.layers.size());
  }

  OracleResult train() {
    for (std::int64_t step = 0; step < run_.steps;) {
      std::int64_t end = std::min(run_.steps, step + run_.drain_every);
      end = std::min(end, (step / run_.drain_every + 1) * run_.drain_every);
      stretch(step, end);
      step = end;
      const bool due = step == run_.steps || (run_.validate_every > 0 && step % run_.validate_every == 0);
      if (due && data_.size(Split::validation) > 0) validate(step);
    }
    for (auto& versions : weights_) result_.parameters.push_back(versions.rbegin()->second);
    return std::move(result_);
  }

 private:
  void stretch(std::int64_t first_step, std::int64_t end_step) {
    std::vector<Piece> pieces;
    const std::int64_t samples = data_.size(Split::train);
    const std::int64_t steps_per_epoch = (samples + run_.batch - 1) / run_.batch;
    for (std::int64_t step = first_step; step < end_step; ++step) {
      const std::int64_t first = step % steps_per_epoch * run_.batch;
      const std::int64_t count = std::min(run_.batch, samples - first);
      for (std::int64_t done = 0; done < count; done += run_.micro_batch) {
        const std::int64_t here = std::min(run_.micro_batch, count - done);
        pieces.push_back({step, step / steps_per_epoch, first + done, here, done / run_.micro_batch, count,
                          done + here == count});
      }
    }
    for (auto& versions : weights_) versions = {{0, versions.rbegin()->second}};
    OracleStep now;
    for (int x = 0; x < static_cast<int>(pieces.size()); ++x) {
      const Piece& piece = pieces[x];
      std::vector<int> versions;
      for (const int delay : delay_) versions.push_back(version(pieces, x, delay));
      now.loss += micro_batch(piece, versions);
      if (!piece.ends_step) continue;
      now.samples = piece.samples_of_step;
      update(piece.step, now);
      result_.steps.push_back(std::move(now));
      now = {};
    }
  }

  /// What micro-batch x of a stretch reads: how many of the stretch's updates are made.
  int version(const std::vector<Piece>& pieces, int x, int delay) const {
    const auto ended_within = [&](int count) {
      int ended = 0;
      for (int y = 0; y < count; ++y) ended += pieces[y].ends_step ? 1 : 0;
      return ended;
    };
    return run_.updates_late ? std::max(0, ended_within(x) - *run_.updates_late) : ended_within(x - delay);
  }

  double share(std::int64_t count, std::int64_t of) const {
    if (loss_.config().reduction == Reduction::sum) return 1;
    return static_cast<double>(count) / static_cast<double>(of);
  }

  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const {
    const at::Tensor inputs = data_.inputs(split, indices);
    return inputs.is_floating_point() ? inputs.to(model_.dtype) : inputs;
  }

  double micro_batch(const Piece& piece, const std::vector<int>& versions) {
    const Shuffle shuffle(data_.size(Split::train), run_.seed, piece.epoch, run_.shuffle);
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < piece.count; ++i) indices.push_back(shuffle(piece.first + i));

    const std::size_t layers = model_.layers.size();
    std::vector<Kept> kept(layers);
    at::Tensor boundary = inputs(Split::train, indices);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const Context context{Mode::train,
                            {.seed = run_.seed,
                             .layer = layer,
                             .step = static_cast<std::uint64_t>(piece.step),
                             .micro_batch = static_cast<std::uint64_t>(piece.number_in_step)}};
      const Weights weights{weights_[layer].at(versions[layer]), result_.buffers[layer]};
      boundary = model_.layers[layer]->forward(weights, boundary, context, &kept[layer]).contiguous();
    }
    Kept kept_loss;
    const LossValue value = loss_.forward(boundary, data_.targets(Split::train, indices),
                                          share(piece.count, piece.samples_of_step), &kept_loss, false);
    at::Tensor gradient = loss_.backward(kept_loss);
    for (std::size_t layer = layers; layer-- > 0;) {
      const Tensors& parameters = weights_[layer].at(versions[layer]);
      gradient = model_.layers[layer]->backward_input(parameters, gradient, kept[layer], layer > 0);
      if (gradient.defined()) gradient = gradient.contiguous();
      if (!parameters.empty()) model_.layers[layer]->backward_weight(kept[layer], sums_[layer]);
    }
    return value.loss;
  }

  void update(std::int64_t step, OracleStep& now) {
    now.learning_rate = learning_rate(run_.scheduler, run_.optimizer, step, run_.steps);
    double squares = 0;
    for (GradientAccumulator& sums : sums_) {
      for (const at::Tensor& gradient : sums.gradients()) squares += sum_of_squares(gradient);
    }
    if (run_.norm) now.gradient_norm = std::sqrt(squares);
    const double factor =
        run_.gradient_clipping > 0 ? clip_factor(std::sqrt(squares), run_.gradient_clipping) : 1;
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
      Tensors copies;
      for (const at::Tensor& gradient : sums_[layer].gradients()) {
        if (factor < 1) gradient.mul_(factor);
        copies.push_back(gradient.clone());
      }
      const int version = weights_[layer].rbegin()->first;
      Tensors next;
      for (const at::Tensor& tensor : weights_[layer].at(version)) next.push_back(tensor.clone());
      std::vector<bool> decays;
      for (const ParameterSpec& spec : model_.layers[layer]->parameters()) decays.push_back(spec.decays);
      if (!next.empty()) {
        optimizer_step(run_.optimizer, now.learning_rate, next, copies, decays, result_.optimizer[layer]);
      }
      weights_[layer][version + 1] = std::move(next);
      now.gradients.push_back(std::move(copies));
      sums_[layer].clear();
    }
  }

  void validate(std::int64_t after_steps) {
    const std::int64_t samples = data_.size(Split::validation);
    OracleValidation validation{.after_steps = after_steps};
    for (std::int64_t first = 0; first < samples; first += run_.micro_batch) {
      std::vector<std::int64_t> indices;
      for (std::int64_t i = first; i < std::min(samples, first + run_.micro_batch); ++i) indices.push_back(i);
      at::Tensor boundary = inputs(Split::validation, indices);
      for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
        const Weights weights{weights_[layer].rbegin()->second, result_.buffers[layer]};
        const Context context{Mode::evaluate, {.seed = run_.seed, .layer = layer}};
        boundary = model_.layers[layer]->forward(weights, boundary, context, nullptr).contiguous();
      }
      const LossValue value =
          loss_.forward(boundary, data_.targets(Split::validation, indices),
                        share(static_cast<std::int64_t>(indices.size()), samples), nullptr, true);
      validation.loss += value.loss;
      validation.correct += value.correct;
    }
    result_.validations.push_back(validation);
  }

  const Model& model_;
  const Loss& loss_;
  const Dataset& data_;
  const OracleRun& run_;
  std::vector<std::map<int, Tensors>> weights_;  // by layer, then version since the drain point
  std::vector<int> delay_;                       // by layer
  std::vector<GradientAccumulator> sums_;
  OracleResult result_;
};

}  // namespace

OracleResult run_oracle(const Model& model, const Loss& loss, const Dataset& data, const OracleRun& run) {
  const c10::InferenceMode no_autograd;
  return Oracle(model, loss, data, run).train();
}

}  // namespace stagecraft::test
