#include "test/support/oracle.h"

#include "engine/core/clipping.h"
#include "models/data/sample_order.h"
#include "models/layers/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace stagecraft::test {
namespace {

/// One micro-batch of a stretch between drain points.
struct Piece {
  std::int64_t step, epoch, first, count;
  std::int64_t number_in_step, first_of_step, samples_of_step;
  bool ends_step;
  std::int64_t number;  // since the drain point
};

class Oracle {
 public:
  Oracle(const Model& model, const Loss& loss, const Dataset& data, const OracleRun& run)
      : model_(model), loss_(loss), data_(data), run_(run) {
    const int layers = static_cast<int>(model.layers.size());
    for (int layer = 0; layer < layers; ++layer) {
      weights_.push_back({{0, initial_parameters(model, layer, run.seed, run.device)}});
      const std::size_t stage = stage_of(layer);
      delay_.push_back(run.updates_late ? 0 : run.delay[stage]);
      newest_.push_back(run.newest.empty() ? 0 : run.newest[stage]);
      const int replicas = run.widths.empty() ? 1 : run.widths[stage];
      for (int replica = 0; replica < replicas; ++replica) {
        if (replica == 0) sums_.emplace_back(), buffers_.emplace_back();
        sums_.back().emplace_back(weights_.back()[0], model.precision.products);
        buffers_.back().push_back(initial_buffers(model, layer, run.device));
      }
    }
    if (run.fp16.enabled) scale_.emplace(run.fp16);
    averaged_.resize(model.layers.size());
    result_.optimizer.resize(model.layers.size());
  }

  OracleResult train() {
    for (std::int64_t step = 0; step < run_.steps;) {
      std::int64_t end = std::min(run_.steps, step + run_.drain_every);
      end = std::min(end, (step / run_.drain_every + 1) * run_.drain_every);
      if (step < run_.synchronous_steps) end = step + 1;
      stretch(step, end);
      step = end;
      const bool due = step == run_.steps || (run_.validate_every > 0 && step % run_.validate_every == 0);
      if (due && data_.size(Split::validation) > 0) validate(step);
    }
    for (auto& versions : weights_) result_.parameters.push_back(on_host(versions.rbegin()->second));
    for (auto& replicas : buffers_) result_.buffers.push_back(on_host(replicas.front()));
    for (OptimizerState& state : result_.optimizer) {
      for (auto& named : state.tensors) {
        for (auto& [name, tensor] : named) tensor = tensor.cpu();
      }
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::size_t stage_of(int layer) const {
    std::size_t stage = 0;
    while (stage + 1 < run_.first_layers.size() && run_.first_layers[stage + 1] <= layer) ++stage;
    return stage;
  }

  static Tensors on_host(const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.cpu());
    return copies;
  }

  void stretch(std::int64_t first_step, std::int64_t end_step) {
    std::vector<Piece> pieces;
    const std::int64_t samples = data_.size(Split::train);
    const std::int64_t steps_per_epoch = (samples + run_.batch - 1) / run_.batch;
    for (std::int64_t step = first_step; step < end_step; ++step) {
      const std::int64_t first = step % steps_per_epoch * run_.batch;
      const std::int64_t count = std::min(run_.batch, samples - first);
      for (std::int64_t done = 0; done < count; done += run_.micro_batch) {
        const std::int64_t here = std::min(run_.micro_batch, count - done);
        pieces.push_back({step, step / steps_per_epoch, first + done, here, done / run_.micro_batch, first,
                          count, done + here == count, static_cast<std::int64_t>(pieces.size())});
      }
    }
    for (auto& versions : weights_) versions = {{0, versions.rbegin()->second}};
    averaged_.assign(averaged_.size(), 0);
    OracleStep now;
    std::vector<Reported> reports(sums_.back().size());  // of each replica of the last stage
    for (int x = 0; x < static_cast<int>(pieces.size()); ++x) {
      const Piece& piece = pieces[x];
      std::vector<int> versions;
      for (const int delay : delay_) versions.push_back(version(pieces, x, delay));
      for (std::size_t layer = 0; layer < buffers_.size(); ++layer) {
        average(layer, ended_within(pieces, x - newest_[layer]));
      }
      reports[replica_of(reports, x)].add(micro_batch(piece, versions));
      if (!piece.ends_step) continue;
      now.samples = piece.samples_of_step;
      Reported all;
      for (Reported& report : reports) all.add(std::exchange(report, {}));
      now.loss = all.loss;
      now.terms = all.terms;
      update(pieces, piece.step, now);
      result_.steps.push_back(std::move(now));
      now = {};
    }
    for (std::size_t layer = 0; layer < buffers_.size(); ++layer) {
      average(layer, ended_within(pieces, static_cast<int>(pieces.size())));
    }
  }

  template <class Replicas>
  static std::size_t replica_of(const Replicas& replicas, std::int64_t micro_batch) {
    return static_cast<std::size_t>(micro_batch) % replicas.size();
  }

  /// Updates whose micro-batches are all among the stretch's first `count`.
  static int ended_within(const std::vector<Piece>& pieces, int count) {
    int ended = 0;
    for (int y = 0; y < count; ++y) ended += pieces[y].ends_step ? 1 : 0;
    return ended;
  }

  /// The replicas' buffers become their mean, or the first one's, once per update.
  void average(std::size_t layer, int updates) {
    std::vector<Tensors>& replicas = buffers_[layer];
    const std::vector<BufferSpec>& specs = model_.layers[layer]->buffers();
    for (; averaged_[layer] < updates; ++averaged_[layer]) {
      for (std::size_t i = 0; replicas.size() > 1 && i < replicas.front().size(); ++i) {
        if (specs[i].over_replicas == OverReplicas::alone) continue;
        at::Tensor sum = replicas.front()[i].clone();
        if (specs[i].over_replicas == OverReplicas::mean) {
          for (std::size_t r = 1; r < replicas.size(); ++r) sum.add_(replicas[r][i]);
          sum.div_(static_cast<double>(replicas.size()));
        }
        for (Tensors& replica : replicas) replica[i].copy_(sum);
      }
    }
  }

  /// What micro-batch x of a stretch reads: how many of the stretch's updates are made.
  int version(const std::vector<Piece>& pieces, int x, int delay) const {
    return run_.updates_late ? std::max(0, ended_within(pieces, x) - *run_.updates_late)
                             : ended_within(pieces, x - delay);
  }

  /// Of a step's update of a layer: how late its micro-batches read, and those that will read what it makes.
  UpdateMoment moment(const std::vector<Piece>& pieces, std::int64_t step, double rate,
                      std::size_t layer) const {
    const std::int64_t update = step - pieces.front().step;  // of this stretch
    std::int64_t late[2] = {}, count[2] = {};
    for (int x = 0; x < static_cast<int>(pieces.size()); ++x) {
      const std::int64_t own = pieces[x].step - pieces.front().step;
      const std::int64_t read = version(pieces, x, delay_[layer]);
      for (const int of : {0, 1}) {
        if (of == 0 ? own != update : read != update + 1) continue;
        late[of] += own - read;
        ++count[of];
      }
    }
    const auto mean = [&](int of) {
      return count[of] == 0 ? 0 : static_cast<double>(late[of]) / static_cast<double>(count[of]);
    };
    return {rate, mean(0), mean(1)};
  }

  /// Of samples first, first + 1, ... of an epoch.
  std::vector<std::int64_t> train_samples(std::int64_t epoch, std::int64_t first, std::int64_t count) const {
    return SampleOrder(data_, Split::train, {run_.seed, run_.shuffle, run_.batch})
        .samples({epoch, first, count});
  }

  /// What these samples weigh among `all`.
  double share(Split split, const std::vector<std::int64_t>& samples,
               const std::vector<std::int64_t>& all) const {
    if (loss_.reduction() == Reduction::sum) return 1;
    if (!loss_.counts_units()) return static_cast<double>(samples.size()) / static_cast<double>(all.size());
    const auto units = static_cast<double>(loss_.units(fields(split, samples)));
    return units == 0 ? 0 : units / static_cast<double>(loss_.units(fields(split, all)));
  }

  /// All that the model or its loss reads, on the CPU.
  FieldTensors fields(Split split, const std::vector<std::int64_t>& samples) const {
    const int layers = static_cast<int>(model_.layers.size());
    return read_fields(data_, split, model_.fields_of(0, layers, &loss_), samples);
  }

  FieldTensors fields_on_device(Split split, const std::vector<std::int64_t>& samples) const {
    FieldTensors read = fields(split, samples);
    for (auto& [name, field] : read) field = field.to(run_.device);
    return read;
  }

  /// What losses report, added in one order.
  struct Reported {
    double loss = 0, correct = 0;
    std::vector<double> terms{};
    void add(const Reported& other) {
      loss += other.loss;
      correct += other.correct;
      terms.resize(std::max(terms.size(), other.terms.size()));
      for (std::size_t i = 0; i < other.terms.size(); ++i) terms[i] += other.terms[i];
    }
  };

  static Reported reported(const LossValue& value) {
    Reported made{.loss = value.loss.item<double>()};
    if (value.correct.defined()) made.correct = value.correct.item<double>();
    if (value.terms.defined()) {
      for (std::int64_t i = 0; i < value.terms.numel(); ++i)
        made.terms.push_back(value.terms[i].item<double>());
    }
    return made;
  }

  LossValue loss_of(const at::Tensor& output, Split split, const std::vector<std::int64_t>& samples,
                    double share, Kept* kept) const {
    const bool count_correct = split == Split::validation;
    if (loss_.fields().empty()) {
      return loss_.forward(output, data_.targets(split, samples).to(run_.device), share, kept, count_correct);
    }
    return loss_.forward(output, fields_on_device(split, samples), share, kept, count_correct);
  }

  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const {
    const at::Tensor inputs = data_.inputs(split, indices).to(run_.device);
    return inputs.is_floating_point() ? inputs.to(model_.precision.compute) : inputs;
  }

  /// What a layer reads of weights: rounded, those that it does not want in full.
  Tensors rounded(std::size_t layer, const Tensors& weights) const {
    Tensors read;
    const std::vector<ParameterSpec>& specs = model_.layers[layer]->parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      read.push_back(specs[i].full ? weights[i] : weights[i].to(model_.precision.compute));
    }
    return read;
  }

  /// Nothing is learnt from gradients of what lies before it.
  [[nodiscard]] std::size_t lowest_trained() const {
    std::size_t layer = 0;
    while (layer < weights_.size() && weights_[layer].begin()->second.empty()) ++layer;
    return layer == weights_.size() ? 0 : layer;
  }

  Reported micro_batch(const Piece& piece, const std::vector<int>& versions) {
    const std::vector<std::int64_t> indices = train_samples(piece.epoch, piece.first, piece.count);
    const std::vector<std::int64_t> step =
        train_samples(piece.epoch, piece.first_of_step, piece.samples_of_step);
    const FieldTensors read = fields_on_device(Split::train, indices);

    const std::size_t layers = model_.layers.size();
    std::vector<Kept> kept(layers);
    Bundle boundary{inputs(Split::train, indices)};
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const Context context{Mode::train,
                            {.seed = run_.seed,
                             .layer = layer,
                             .step = static_cast<std::uint64_t>(piece.step),
                             .micro_batch = static_cast<std::uint64_t>(piece.number_in_step)},
                            /*commit_buffers=*/true,
                            &read};
      Tensors& buffers = buffers_[layer][replica_of(buffers_[layer], piece.number)];
      const Tensors parameters = rounded(layer, weights_[layer].at(versions[layer]));
      const Weights weights{parameters, buffers};
      boundary = contiguous(model_.layers[layer]->forward_bundle(weights, boundary, context, &kept[layer]));
    }
    Kept kept_loss;
    const LossValue value =
        loss_of(boundary.front(), Split::train, indices, share(Split::train, indices, step), &kept_loss);
    Bundle gradients{loss_.backward(kept_loss, scale_ ? scale_->value() : 1)};
    const std::size_t lowest = lowest_trained();
    for (std::size_t layer = layers; layer-- > lowest;) {
      const Tensors parameters = rounded(layer, weights_[layer].at(versions[layer]));
      gradients = contiguous(
          model_.layers[layer]->backward_bundle(parameters, gradients, kept[layer], layer > lowest));
      if (parameters.empty()) continue;
      model_.layers[layer]->backward_weight(kept[layer],
                                            sums_[layer][replica_of(sums_[layer], piece.number)]);
    }
    return reported(value);
  }

  /// Of the first layer that holds the parameter; null: this one, or it is not tied.
  const Tie::Holder* held_before(int layer, int parameter) const {
    for (const Tie& tie : model_.ties) {
      for (auto holder = tie.holders.begin() + 1; holder != tie.holders.end(); ++holder) {
        if (holder->layer == layer && holder->parameter == parameter) return &tie.holders.front();
      }
    }
    return nullptr;
  }

  /// The gradients of tied weights, each one tensor to which what every layer's replicas have is added, the last
  /// layer's first; by layer and parameter.
  std::map<std::pair<int, int>, at::Tensor> add_tied() {
    std::map<std::pair<int, int>, at::Tensor> tied;
    for (const Tie& tie : model_.ties) {
      at::Tensor sum;
      for (auto holder = tie.holders.rbegin(); holder != tie.holders.rend(); ++holder) {
        for (GradientAccumulator& replica : sums_[static_cast<std::size_t>(holder->layer)]) {
          const at::Tensor& own = replica.gradients()[static_cast<std::size_t>(holder->parameter)];
          sum = sum.defined() ? sum.add(own) : own.clone();
        }
      }
      for (const Tie::Holder& holder : tie.holders) tied[{holder.layer, holder.parameter}] = sum;
    }
    return tied;
  }

  void update(const std::vector<Piece>& pieces, std::int64_t step, OracleStep& now) {
    now.learning_rate = run_.scheduler.rate({step, run_.steps, run_.optimizer->learning_rate()});
    const std::map<std::pair<int, int>, at::Tensor> tied = add_tied();
    std::vector<double> norms;
    std::vector<std::int64_t> order;
    for (std::size_t layer = 0; layer < sums_.size(); ++layer) {
      std::vector<GradientAccumulator>& replicas = sums_[layer];
      for (std::size_t i = 0; i < replicas.front().gradients().size(); ++i) {
        const at::Tensor& sum = replicas.front().gradients()[i];
        const auto of_all = tied.find({static_cast<int>(layer), static_cast<int>(i)});
        if (of_all != tied.end()) {
          sum.copy_(of_all->second);
        } else {
          for (std::size_t r = 1; r < replicas.size(); ++r) sum.add_(replicas[r].gradients()[i]);
        }
        const bool counts = held_before(static_cast<int>(layer), static_cast<int>(i)) == nullptr;
        if (counts) order.push_back(static_cast<std::int64_t>(norms.size()));
        norms.push_back(counts ? norms_of({sum}).front() : 0);
      }
    }
    const at::ScalarType type = model_.precision.full;
    const double scale = scale_ ? scale_->value() : 1;
    const double norm = norm_of(norms, order, at::TensorOptions(run_.device).dtype(type)) / scale;
    std::vector<bool> skips(run_.first_layers.size(), false);  // by stage
    if (scale_ || (run_.norm && run_.skip)) {
      skips.assign(skips.size(), !std::isfinite(norm));
    } else if (run_.skip) {
      for (std::size_t layer = 0; layer < sums_.size(); ++layer) {
        for (const at::Tensor& gradient : sums_[layer].front().gradients()) {
          if (!at::isfinite(gradient).all().item<bool>()) skips[stage_of(static_cast<int>(layer))] = true;
        }
      }
    }
    now.skipped = skips.front();
    if (scale_) {
      now.loss_scale = scale;
      scale_->update(now.skipped);
    }
    if (run_.norm && !now.skipped) now.gradient_norm = norm;
    const double factor =
        now.skipped
            ? 1
            : (run_.gradient_clipping > 0 ? clip_factor(norm, run_.gradient_clipping, type) : 1) / scale;
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
      Tensors copies;
      for (const at::Tensor& gradient : sums_[layer].front().gradients()) {
        if (factor != 1) gradient.mul_(factor);
        copies.push_back(gradient.clone());
      }
      const int version = weights_[layer].rbegin()->first;
      Tensors next;
      for (const at::Tensor& tensor : weights_[layer].at(version)) next.push_back(tensor.clone());
      std::vector<bool> received = sums_[layer].front().received();
      for (std::size_t i = 0; i < received.size(); ++i) {
        if (sums_[layer].size() > 1 || tied.contains({static_cast<int>(layer), static_cast<int>(i)}))
          received[i] = true;
      }
      if (!next.empty() && !skips[stage_of(static_cast<int>(layer))]) {
        run_.optimizer->step(static_cast<int>(layer), moment(pieces, step, now.learning_rate, layer), next,
                             copies, received, result_.optimizer[layer]);
      }
      for (std::size_t i = 0; i < next.size(); ++i) {
        const Tie::Holder* first = held_before(static_cast<int>(layer), static_cast<int>(i));
        if (first != nullptr) next[i] = weights_[first->layer].rbegin()->second[first->parameter];
      }
      weights_[layer][version + 1] = std::move(next);
      now.gradients.push_back(on_host(copies));
      for (GradientAccumulator& replica : sums_[layer]) replica.clear();
    }
  }

  /// The average of the weights, where there is one already; else the weights.
  Tensors validated(std::size_t layer) const {
    Tensors weights = weights_[layer].rbegin()->second;
    const OptimizerState& state = result_.optimizer[layer];
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const auto average = state.tensors[i].find("ema");
      if (average != state.tensors[i].end()) weights[i] = average->second;
    }
    return weights;
  }

  void validate(std::int64_t after_steps) {
    const std::int64_t samples = data_.size(Split::validation);
    std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
    std::iota(all.begin(), all.end(), 0);
    std::vector<Reported> parts(sums_.back().size());  // of each replica of the last stage
    for (std::int64_t first = 0; first < samples; first += run_.micro_batch) {
      const std::vector<std::int64_t> indices(all.begin() + first,
                                              all.begin() + std::min(samples, first + run_.micro_batch));
      const FieldTensors read = fields_on_device(Split::validation, indices);
      Bundle boundary{inputs(Split::validation, indices)};
      for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
        const Tensors parameters = rounded(layer, validated(layer));
        const Weights weights{parameters, buffers_[layer].front()};
        const Context context{
            Mode::evaluate, {.seed = run_.seed, .layer = layer}, /*commit_buffers=*/true, &read};
        boundary = contiguous(model_.layers[layer]->forward_bundle(weights, boundary, context, nullptr));
      }
      const LossValue value = loss_of(boundary.front(), Split::validation, indices,
                                      share(Split::validation, indices, all), nullptr);
      parts[replica_of(parts, first / run_.micro_batch)].add(reported(value));
    }
    Reported sum;
    for (const Reported& part : parts) sum.add(part);
    result_.validations.push_back({after_steps, sum.loss, sum.correct, sum.terms});
  }

  const Model& model_;
  const Loss& loss_;
  const Dataset& data_;
  const OracleRun& run_;
  std::vector<std::map<int, Tensors>> weights_;         // by layer, then version since the drain point
  std::vector<int> delay_, newest_;                     // by layer
  std::vector<std::vector<GradientAccumulator>> sums_;  // by layer and replica
  std::vector<std::vector<Tensors>> buffers_;           // by layer and replica
  std::optional<LossScale> scale_;
  std::vector<int> averaged_;  // by layer: averages made since the drain point
  OracleResult result_;
};

}  // namespace

OracleResult run_oracle(const Model& model, const Loss& loss, const Dataset& data, const OracleRun& run) {
  const c10::InferenceMode no_autograd;
  return Oracle(model, loss, data, run).train();
}

}  // namespace stagecraft::test
