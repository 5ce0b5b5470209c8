// The command line with layers, data sets, a loss, an optimizer, a learning rate and a schedule that each break one
// promise: what a program that links Stagecraft may get wrong. For check_layers_test.cpp.

#include "base/json.h"
#include "cli/command_line.h"
#include "engine/optimizers/optimizer.h"
#include "engine/records/settings/learning_rate.h"
#include "models/data/dataset.h"
#include "models/layers/functional.h"
#include "models/layers/registry.h"
#include "models/losses/loss.h"
#include "schedules/generators/registry.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;

namespace {

struct Oddity {  // not a std::exception
  int value = 3;
};

[[noreturn]] void throw_as(const std::string& how) {
  if (how == "std") throw std::runtime_error("my own exception");
  if (how == "int") throw 7;
  if (how == "type") throw Oddity{};
  if (how == "input") throw InputError("my input is bad");
  if (how == "map") (void)std::vector<int>{}.at(3);
  throw std::string("a string");
}

struct LayerSettings {
  std::string defect;
};
void describe(Fields& f, LayerSettings& s) { f.optional("defect", s.defect, "what is wrong with it"); }

/// y = x * weight + bias, by features, where nothing is wrong.
class Broken final : public Layer {
 public:
  Broken(const LayerSite& site, std::string defect)
      : Layer(site.name, facts_of(site.input.back(), defect)),
        features_(site.input.back()),
        defect_(std::move(defect)) {}

  static LayerFacts facts_of(std::int64_t features, const std::string& defect) {
    LayerFacts facts{.type = "broken",
                     .details = defect,
                     .parameters = {{"weight", {features}, {Initial::Kind::ones}}, {"bias", {features}, {}}}};
    if (defect.find("buffer") != std::string::npos || defect.find("batch statistics") != std::string::npos)
      facts.buffers = {{"mean", {features}}};
    return facts;
  }

  at::Tensor forward(const Weights& w, const at::Tensor& x, const Context& context,
                     Kept* kept) const override {
    const bool training = context.mode == Mode::train;
    if (x.is_meta()) {
      if (has("meta shape")) return at::empty({x.size(0), x.size(1) + 1}, x.options());
      if (has("meta type")) return at::empty(x.sizes(), x.options().dtype(at::kHalf));
      return at::empty(x.sizes(), x.options());
    }
    if (defect_.starts_with("forward throws ")) throw_as(defect_.substr(15));
    if (has("parameter index")) return x * w.parameters[2];
    if (has("undefined output")) return {};
    if (has("input in place")) x.mul_(1.5);
    if (has("parameter in place")) w.parameters[0].mul_(1.0001);
    if (has("buffer in evaluation")) w.buffers[0].add_(1);
    if (has("buffer done again") && training) w.buffers[0].add_(1);
    if (has("buffer replaced") && training && context.commit_buffers) w.buffers[0] = w.buffers[0] + 1;
    at::Tensor scale = w.parameters[0];
    if (has("throws at step 2") && training && context.key.step == 1) throw_as("std");
    if (has("nan")) scale = scale * std::nan("");
    if (has("nan in evaluation") && !training) scale = scale * std::nan("");
    if (has("random")) scale = scale * (1 + 0.1 * at::rand({}, scale.options()));
    if (has("counts calls")) scale = scale * (1 + 0.1 * static_cast<double>(calls_++));
    if (has("noise in evaluation")) scale = scale * (1 + 0.1 * static_cast<double>(context.key.step));
    at::Tensor input = x;
    if (has("batch statistics")) {
      const at::Tensor mean = x.mean(0);
      if (training && context.commit_buffers) w.buffers[0].mul_(0.9).add_(mean.detach(), 0.1);
      input = x - mean;
    }
    if (has("keeps scratch")) {
      if (!scratch_.defined() || scratch_.sizes() != x.sizes() || scratch_.scalar_type() != x.scalar_type())
        scratch_ = at::empty_like(x.detach());
      if (x.sizes() == scratch_.sizes()) scratch_.copy_(x.detach());
    }
    if (has("other micro-batch")) last_ = x.detach();
    if (has("keeps a buffer")) w.buffers[0].copy_(x.detach().mean(0));
    if (kept != nullptr && !has("keeps nothing"))
      kept->for_input = {has("keeps scratch")    ? scratch_
                         : has("keeps a buffer") ? w.buffers[0].expand_as(x)
                                                 : input};
    at::Tensor y = input * scale + w.parameters[1];
    if (has("float64")) y = y.to(at::kDouble);
    if (has("float16")) y = y.to(at::kHalf);
    if (has("shape")) y = y.unsqueeze(1);
    return y;
  }

  at::Tensor backward_input(const Tensors& p, const at::Tensor& dy, Kept& kept, bool) const override {
    if (defect_.starts_with("backward throws ")) throw_as(defect_.substr(16));
    const auto [x] = functional::take<1>(kept.for_input);
    const at::Tensor its = has("other micro-batch")
                               ? last_.sizes() == dy.sizes() ? last_ : last_.narrow(0, 0, 1).expand_as(dy)
                               : x;
    if (has("kept left")) kept.for_input = {x};
    if (has("gradient in place")) dy.mul_(2);
    if (has("input in place, backward")) x.mul_(2);
    at::Tensor dw = (its * dy).flatten(0, -2).sum(0), db = dy.flatten(0, -2).sum(0);
    if (has("weight twice")) dw = dw * 2;
    if (has("weight transposed")) dw = dw.flip(0);
    kept.for_weight = {dw, db};
    if (has("halves apart")) {
      pending_ = dw;
      kept.for_weight = {at::empty_like(dw), db};
    }
    at::Tensor dx = dy * p[0];
    if (has("batch statistics")) dx = dx - dx.mean(0);
    if (has("input gradient")) dx = dx * 0.5;
    if (has("nan gradient")) dx = dx * std::nan("");
    if (has("one element")) dx.select(0, 0).select(0, 0).add_(1);
    if (has("undefined gradient")) return {};
    if (has("gradient of float64")) return dx.to(at::kDouble);
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    if (defect_.starts_with("weight half throws ")) throw_as(defect_.substr(19));
    auto [dw, db] = functional::take<2>(kept.for_weight);
    if (has("halves apart")) dw = pending_;
    if (has("nothing added")) return;
    if (has("sink index")) return sink.add(2, dw);
    if (has("sink negative")) return sink.add(-1, dw);
    if (has("sink product index")) return sink.add_product(1000000, dw.view({1, -1}), dw.view({-1, 1}));
    if (has("sink shape")) return sink.add(0, dw.sum().view({1}));
    if (has("sink product shape")) return sink.add_product(0, dw.view({-1, 1}), dw.view({1, -1}));
    if (has("sink undefined")) return sink.add(0, {});
    if (has("sink integers")) return sink.add(0, dw.to(at::kLong));
    sink.add(0, dw);
    if (has("added again")) sink.add(0, dw);
    if (!has("bias forgotten")) sink.add(1, db);
    if (has("kept left, weight half")) kept.for_weight = {dw};
  }

 private:
  [[nodiscard]] bool has(std::string_view defect) const {
    return defect_ == defect ||
           (defect == "buffer" && (defect_.starts_with("buffer") || defect_ == "keeps a buffer"));
  }

  std::int64_t features_;
  std::string defect_;
  mutable std::atomic<int> calls_ = 0;
  mutable at::Tensor scratch_, last_, pending_;
};

struct DataSettings {
  std::string defect;
};
void describe(Fields& f, DataSettings& s) { f.optional("defect", s.defect, "what is wrong with it"); }

class Tab final : public Dataset {
 public:
  explicit Tab(std::string defect) : defect_(std::move(defect)) {}
  std::int64_t size(Split split) const override { return split == Split::train ? 64 : 16; }
  SampleSpec sample() const override {
    return {{6}, at::kFloat, 4, Targets::classes, {{"weight", {2}, at::kFloat}}};
  }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    if (defect_.starts_with("throws ")) throw_as(defect_.substr(7));
    if (defect_ == "a row too few") return at::ones({rows - 1, 6});
    if (defect_ == "a row too few in validation" && split == Split::validation)
      return at::ones({rows - 1, 6});
    if (defect_ == "narrow") return at::ones({rows, 5});
    if (defect_ == "double") return at::ones({rows, 6}, at::kDouble);
    if (defect_ == "integers") return at::ones({rows, 6}, at::kLong);
    if (defect_ == "undefined") return {};
    at::Tensor numbers = at::empty({rows, 6});
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < 6; ++k) {
        numbers[i][k] = std::sin(0.7 * static_cast<double>(indices[static_cast<std::size_t>(i)] * 6 + k));
      }
    }
    return numbers;
  }
  at::Tensor targets(Split, const std::vector<std::int64_t>& indices) const override {
    at::Tensor classes = at::tensor(indices).remainder(4);
    if (defect_ == "float targets") return classes.to(at::kFloat);
    if (defect_ == "a class too many") return classes + 1;
    if (defect_ == "a negative class") return classes - 1;
    if (defect_ == "a target too few") return classes.narrow(0, 0, classes.size(0) - 1);
    return classes;
  }
  at::Tensor field(Split, const std::string&, const std::vector<std::int64_t>& indices) const override {
    return at::ones({static_cast<std::int64_t>(indices.size()), defect_ == "field" ? 3 : 2});
  }
  std::string fingerprint() const override { return "tab"; }
  std::string summary() const override { return "tab"; }

 private:
  std::string defect_;
};

struct LossSettings {
  std::string defect;
};
void describe(Fields& f, LossSettings& s) { f.optional("defect", s.defect, "what is wrong with it"); }

/// The mean square of the outputs, where nothing is wrong.
class Square final : public Loss {
 public:
  Square(std::string defect, Reduction reduction) : Loss(reduction), defect_(std::move(defect)) {}
  LossValue forward(const at::Tensor& output, const LossData&, double share, Kept* kept,
                    bool) const override {
    if (defect_ == "throws") throw std::runtime_error("my own loss");
    if (defect_ == "in place") output.mul_(2);
    const double scale =
        defect_ == "share" ? 1.0 / static_cast<double>(output.numel()) : factor(share, output.numel());
    if (kept != nullptr) kept->for_input = {output, at::scalar_tensor(scale, at::kDouble)};
    if (defect_ == "a row") return {output.square().sum(at::kDouble).mul(scale).view({1}), {}};
    return {output.square().sum(at::kDouble).mul(scale), {}};
  }
  at::Tensor backward(Kept& kept, double scale) const override {
    const auto [output, factor] = functional::take<2>(kept.for_input);
    if (defect_ == "scale") scale = 1;
    return output * (factor.item<double>() * scale * (defect_ == "gradient" ? 1 : 2));
  }
  bool reads_weights() const override { return defect_ == "weights"; }
  Targets targets() const override { return Targets::classes; }
  std::string misfit(const std::vector<std::int64_t>&, const SampleSpec&) const override { return ""; }

 private:
  std::string defect_;
};

struct OptimizerSettings {};
void describe(Fields&, OptimizerSettings&) {}

class Thrower final : public Optimizer {
 public:
  std::vector<StateSpec> state_of(const ParameterSite&) const override { return {}; }
  void update(const OptimizerUpdate&) const override { throw std::runtime_error("my own optimizer"); }
  double learning_rate() const override { return 0.1; }
  double weight_decay(const ParameterSite&) const override { return 0; }
};

struct RateSettings {
  bool finite = false;
};
void describe(Fields& f, RateSettings& s) { f.optional("finite", s.finite, "else it gives nan"); }

}  // namespace

int main(int argc, char** argv) {
  layers().add<LayerSettings>("broken", [](const LayerSettings& s, const LayerSite& site) -> LayerPtr {
    if (s.defect == "null") return nullptr;
    if (s.defect.starts_with("make throws ")) throw_as(s.defect.substr(12));
    return std::make_shared<Broken>(site, s.defect);
  });
  data_sets().add<DataSettings>("tab",
                                [](const DataSettings& s, const InputPlace&) -> std::unique_ptr<Dataset> {
                                  if (s.defect == "null") return nullptr;
                                  if (s.defect.starts_with("open throws ")) throw_as(s.defect.substr(12));
                                  return std::make_unique<Tab>(s.defect);
                                });
  losses().add<LossSettings>("square",
                             [](const LossSettings& s, Reduction reduction) -> std::shared_ptr<const Loss> {
                               return std::make_shared<Square>(s.defect, reduction);
                             });
  optimizers().add<OptimizerSettings>("Thrower",
                                      [](const OptimizerSettings&, OptimizerKind::Site) -> OptimizerPtr {
                                        return std::make_shared<Thrower>();
                                      });
  learning_rates().add<RateSettings>("odd", [](const RateSettings& s, const LearningRateSite& at) {
    if (s.finite && at.step == 1) throw std::runtime_error("my own rate");
    return s.finite ? 0.1 : std::nan("");
  });
  add_schedule({.name = "mine",
                .summary = "throws",
                .paper = "none",
                .build = [](const ScheduleRequest&) -> ScheduleProgram {
                  throw std::runtime_error("my own schedule");
                }});
  return run_command_line(argc, argv);
}
