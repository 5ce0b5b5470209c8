// A stage's work, recorded once and repeated: what a recording is (on a device that is none), that whole runs
// with recordings equal the oracle to the bit, and which parts are recorded.

#include "engine/core/stage_graphs.h"

#include "engine/device/cuda/pool_id.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"
#include "test/support/fake_graphs.h"
#include "test/support/full.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Of every rank; the run must equal the oracle.
std::vector<GraphCounts> counts_of(const Setting& setting) {
  std::vector<GraphCounts> counts(static_cast<std::size_t>(setting.placement.world()));
  CHECK(run_and_compare(setting, staged, [&](Rank rank, const Outcome& outcome) {
          counts[rank.index()] = outcome.graphs;
        }) == "");
  return counts;
}

/// The same of a setting that is no case's own, and so of no oracle that was kept.
struct Recorded {
  std::int64_t recorded = 0, repeated = 0;
  std::vector<StepReport> steps;
};
Recorded record(const Setting& setting) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
  run_on_devices(setting.placement.world(), staged, [&](Transport& transport) {
    outcomes[transport.rank().index()] = run_rank(setting, transport);
  });
  CHECK(difference(outcomes, run_oracle(setting.model, *setting.loss, *setting.data, setting.oracle)) == "");
  Recorded found{.steps = outcomes.front().steps};
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.graphs.refusal == "");
    found.recorded += outcome.graphs.recorded;
    found.repeated += outcome.graphs.repeated;
  }
  return found;
}

/// A loss of the model's, which reads its targets as a field of the batch, and of which micro-batches weigh as
/// many targets as are not of the first class.
class Weighed final : public Loss {
 public:
  /// `varies`: else all targets count. `reads`: the loss takes its weights from memory.
  Weighed(std::shared_ptr<const Loss> loss, bool varies, bool reads)
      : Loss(loss->reduction()), loss_(std::move(loss)), varies_(varies), reads_(reads) {}
  LossValue forward(const at::Tensor& output, const LossData& data, double share, Kept* kept,
                    bool count_correct) const override {
    LossData own(data.fields->at("labels"));
    if (share == 0) return loss_->forward(output, own, 0.125, kept, count_correct);  // a way of its own
    own.weights = data.weights;
    demand(reads_ || !own.weights.defined(), "weights lie in memory for a loss that reads them alone");
    return loss_->forward(output, own, share, kept, count_correct);
  }
  at::Tensor backward(Kept& kept, double scale) const override { return loss_->backward(kept, scale); }
  bool reads_weights() const override { return reads_; }
  std::vector<std::string> fields() const override { return {"labels"}; }
  bool counts_units() const override { return true; }
  std::int64_t units(const FieldTensors& fields) const override {
    const at::Tensor& labels = fields.at("labels");
    return varies_ ? labels.ne(0).sum().item<std::int64_t>() : labels.numel();
  }
  Targets targets() const override { return loss_->targets(); }
  std::string misfit(const std::vector<std::int64_t>& shape, const SampleSpec& sample) const override {
    return loss_->misfit(shape, sample);
  }

 private:
  std::shared_ptr<const Loss> loss_;
  bool varies_, reads_;
};

}  // namespace

TEST_CASE("what is recorded is done when it is launched, at the addresses that it has seen", "[graphs]") {
  const c10::InferenceMode no_autograd;
  const std::shared_ptr<DeviceGraphs> graphs = fake_graphs();
  const auto pool = graphs->make_pool();
  const at::Tensor x = at::full({2, 3}, 2.0, at::TensorOptions(fake_accelerator()));
  at::Tensor sum, product;
  const auto graph = graphs->record(pool, [&] {
    sum = x.add(1);
    x.mul_(3);
    product = sum.mm(x.t()).relu_();
  });
  CHECK(x[0][0].item<float>() == 2);
  CHECK(std::isnan(sum[0][0].item<float>()));
  graph->launch();
  CHECK(x[0][0].item<float>() == 6);
  CHECK(sum[0][0].item<float>() == 3);
  CHECK(product[1][1].item<float>() == 54);
  x.fill_(1);
  graph->launch();
  CHECK(product[1][1].item<float>() == 18);

  SECTION("what waits for the device, or moves to the host, cannot be recorded") {
    CHECK_THROWS(graphs->record(pool, [&] { (void)x[0][0].item<float>(); }));
    CHECK_THROWS(graphs->record(pool, [&] { (void)x.cpu(); }));
    CHECK_THROWS(graphs->record(pool, [&] { (void)at::ones({2}).to(fake_accelerator()); }));
    CHECK(x[0][0].item<float>() == 3);
  }
  SECTION("a pool gives memory again that came back") {
    const void* const address = product.const_data_ptr();
    product.reset();
    at::Tensor next;
    const auto other = graphs->record(pool, [&] { next = x.mm(x.t()); });
    CHECK(next.const_data_ptr() == address);
    other->launch();
    CHECK(next[0][0].item<float>() == 27);
    graph->launch();  // writes over it: x is 9 now, the sum 4
    CHECK(next[0][0].item<float>() == 108);
  }
}

TEST_CASE("a micro-batch whose backward comes in other parts than when its pass was recorded", "[graphs]") {
  using Kind = StageGraphs::PartKind;
  const c10::InferenceMode no_autograd;
  const at::TensorOptions here(fake_accelerator());
  StageGraphs graphs(fake_graphs(), fake_accelerator());
  StageGraphs::Accumulators sums;
  sums.emplace_back(Tensors{at::empty({2}, here)});
  const GraphKey key = GraphKey().add(std::uint64_t{1});
  CHECK(graphs.begin(key, 0) == nullptr);  // the first time warms up

  const StageGraphs::Part forward = [](Tensors inputs, InFlight& work) -> Tensors {
    work.layers.resize(1);
    work.layers[0].for_input = {inputs[0].mul(2), inputs[0].add(100)};
    return {inputs[0].add(1)};
  };
  const StageGraphs::Part input_half = [](Tensors inputs, InFlight& work) -> Tensors {
    const Tensors kept = std::exchange(work.layers[0].for_input, {});
    work.layers[0].for_weight = {inputs[0].mul(kept[1]).mul(kept[0])};
    return {inputs[0].add(kept[0])};
  };
  const StageGraphs::Part weight_half = [&](Tensors, InFlight& work) -> Tensors {
    sums[0].add(0, work.layers[0].for_weight.at(0));
    work.layers[0].clear();
    return {};
  };
  const StageGraphs::Part whole = [&](Tensors inputs, InFlight& work) -> Tensors {
    Tensors results = input_half(std::move(inputs), work);
    (void)weight_half({}, work);
    return results;
  };
  Tensors elsewhere;  // takes the memory that parts which run as they are would be given again
  double sum = 0;
  for (int k = 1; k < 7; ++k) {
    INFO(k);
    const double x = k;
    StageGraphs::Pass* const pass = graphs.begin(key, k);
    REQUIRE(pass != nullptr);
    InFlight work;
    const at::Tensor out =
        graphs.run(*pass, Kind::forward, {at::full({2}, x, here)}, work, nullptr, forward).at(0);
    const at::Tensor gradient = at::full({2}, 3.0, here);
    at::Tensor back;
    if (k == 1) {
      back = graphs.run(*pass, Kind::backward, {gradient}, work, &sums, whole).at(0);
    } else {
      back = graphs.run(*pass, Kind::backward_input, {gradient}, work, nullptr, input_half).at(0);
      elsewhere.push_back(work.layers[0].for_weight.at(0));
      (void)graphs.run(*pass, Kind::backward_weight, {}, work, &sums, weight_half);
    }
    graphs.end(*pass);
    sum += 3 * (x + 100) * 2 * x;
    CHECK(out[1].item<double>() == x + 1);
    CHECK(back[1].item<double>() == 3 + 2 * x);
    CHECK(sums[0].memory()[0][1].item<double>() == sum);
  }
  CHECK(graphs.counts().refusal == "");
  CHECK(graphs.counts().plain > 0);
}

TEST_CASE("recordings stay, and what has no room among them runs as it is", "[graphs]") {
  const c10::InferenceMode no_autograd;
  const at::TensorOptions here(fake_accelerator());
  StageGraphs graphs(fake_graphs(), fake_accelerator());
  const StageGraphs::Part part = [](Tensors inputs, InFlight&) -> Tensors { return {inputs[0].add(1)}; };
  // `in_flight` micro-batches at once, a key for each scale.
  const auto step = [&](std::uint64_t scale, int in_flight) {
    std::vector<StageGraphs::Pass*> passes;
    for (int k = 0; k < in_flight; ++k) {
      StageGraphs::Pass* const pass = graphs.begin(GraphKey().add(scale), k);
      passes.push_back(pass);
      if (pass == nullptr) continue;
      InFlight work;
      const Tensors made =
          graphs.run(*pass, StageGraphs::PartKind::forward, {at::ones({2}, here)}, work, nullptr, part);
      CHECK(made[0].cpu()[0].item<float>() == 2);
    }
    for (StageGraphs::Pass* const pass : passes) {
      if (pass != nullptr) graphs.end(*pass);
    }
  };
  for (int k = 0; k < 4; ++k) step(1, 300);  // as fill-drain has them
  CHECK(graphs.counts().recorded == 300);
  CHECK(graphs.counts().repeated == 4 * 300 - 1);  // the first of all warms up
  for (std::uint64_t scale = 2; scale < 8; ++scale) step(scale, 300);
  const GraphCounts full = graphs.counts();
  CHECK(full.recorded == 1024);
  CHECK(full.crowded > 0);
  step(1, 300);  // as ever
  CHECK(graphs.counts().repeated == full.repeated + 300);
  CHECK(graphs.counts().crowded == full.crowded);
}

TEST_CASE("runs whose work is recorded equal the oracle to the bit", "[graphs]") {
  int runs = 0;
  std::int64_t repeated = 0, recordings = 0, plain = 0;
  std::mutex mutex;
  for (const PipelineCase& pipeline : covering(Cover::values, std::vector{1, 2, 3, 4})) {
    const Setting setting = with_graphs(pipeline);
    INFO(setting.pipeline.name());
    CHECK(run_and_compare(setting, staged, [&](Rank, const Outcome& outcome) {
            const std::scoped_lock lock(mutex);
            demand(outcome.graphs.refusal.empty(), outcome.graphs.refusal);
            recordings += outcome.graphs.recorded;
            repeated += outcome.graphs.repeated;
            plain += outcome.graphs.plain;
          }) == "");
    ++runs;
  }
  std::cout << fmt::format("{} runs: {} parts recorded, {} repeated, {} as they are\n", runs, recordings,
                           repeated, plain);
  CHECK(runs > 20);
  CHECK(repeated > 2 * recordings);
}

TEST_CASE("over NCCL, too", "[graphs]") {
  for (const char* schedule : {"1f1b", "zb_h1", "pipedream"}) {
    const Setting setting = with_graphs({.schedule = schedule,
                                         .stages = 3,
                                         .model = ModelKind::gpt,
                                         .shape = BatchShape::many,
                                         .optimizer = CaseOptimizer::adamw,
                                         .dropout = true});
    INFO(setting.pipeline.name());
    CHECK(run_and_compare(setting, over_nccl(setting)) == "");
  }
}

TEST_CASE("of a steady pipeline every part is recorded, a few times and no more", "[graphs]") {
  for (const Recompute recompute : {Recompute::none, Recompute::all}) {
    const Setting setting = with_graphs({.schedule = "zb_h1",
                                         .stages = 2,
                                         .recompute = recompute,
                                         .model = ModelKind::gpt,
                                         .shape = BatchShape::many,
                                         .optimizer = CaseOptimizer::adamw,
                                         .dropout = true});
    INFO(setting.pipeline.name());
    for (const GraphCounts& counts : counts_of(setting)) {
      INFO(fmt::format("{} recorded, {} repeated, {} plain", counts.recorded, counts.repeated, counts.plain));
      CHECK(counts.refusal == "");
      CHECK(counts.recorded > 0);
      CHECK(counts.plain == 0);  // what has no pass is not counted
      CHECK(counts.repeated > 4 * counts.recorded);
    }
  }
  CHECK(pool_bytes() == 0);  // the runs are over
}

TEST_CASE("scales of the loss make no recordings", "[graphs]") {
  for (const ModelKind model : {ModelKind::mlp, ModelKind::gpt}) {
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      if (!full() && (model == ModelKind::mlp) != (recompute == Recompute::all)) continue;
      Setting setting = with_graphs({.schedule = "zb_h1",
                                     .stages = 2,
                                     .recompute = recompute,
                                     .model = model,
                                     .shape = BatchShape::many,
                                     .optimizer = CaseOptimizer::adamw,
                                     .precision = PrecisionKind::fp16,
                                     .dropout = true,
                                     .clipping = 0.05});
      INFO(setting.pipeline.name());
      const auto with_scale = [&](const Fp16Config& config) {
        setting.options.fp16 = setting.oracle.fp16 = config;
        return record(setting);
      };
      const Recorded one = with_scale({.enabled = true, .loss_scale = 256});
      const Recorded many =
          with_scale({.enabled = true, .initial_scale_power = 15, .loss_scale_window = 1, .hysteresis = 1});
      std::set<double> scales;
      for (const StepReport& step : many.steps) scales.insert(step.loss_scale.value());
      CHECK(scales.size() >= 3);
      CHECK(many.recorded == one.recorded);
      CHECK(many.repeated == one.repeated);
      CHECK(one.repeated > 3 * one.recorded);
    }
  }
}

TEST_CASE("neither do weights of micro-batches, but for a loss that cannot read them from memory",
          "[graphs]") {
  for (const ModelKind model : {ModelKind::mlp, ModelKind::gpt}) {
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      if (!full() && (model == ModelKind::mlp) != (recompute == Recompute::all)) continue;
      Setting setting = with_graphs({.schedule = "1f1b",
                                     .stages = 2,
                                     .recompute = recompute,
                                     .model = model,
                                     .shape = BatchShape::many,
                                     .optimizer = CaseOptimizer::adamw});
      INFO(setting.pipeline.name());
      const std::shared_ptr<const Loss> loss = setting.loss;
      const bool tokens = model == ModelKind::gpt;
      setting.model.fields.push_back(
          {.name = "labels",
           .from = "targets",
           .shape = tokens ? std::vector<std::int64_t>{6} : std::vector<std::int64_t>{}});
      const auto weighed = [&](bool varies, bool reads) {
        setting.loss = std::make_shared<Weighed>(loss, varies, reads);
        return record(setting);
      };
      const Recorded alike = weighed(false, true), varied = weighed(true, true), keyed = weighed(true, false);
      CHECK(varied.recorded == alike.recorded);
      CHECK(varied.repeated <= alike.repeated);  // by a micro-batch that weighs nothing
      CHECK(varied.repeated + 4 > alike.repeated);
      CHECK(keyed.recorded > varied.recorded);
    }
  }
}

TEST_CASE("where a backward hands its layers in to a sum, it runs as it is", "[graphs]") {
  const Setting setting = with_graphs({.schedule = "1f1b",
                                       .stages = 2,
                                       .widths = {2, 1},
                                       .model = ModelKind::convnet,
                                       .shape = BatchShape::many});
  for (const GraphCounts& counts : counts_of(setting)) {
    CHECK(counts.refusal == "");
    CHECK(counts.repeated > counts.recorded);
  }
}

TEST_CASE("LibTorch's table of pools tells those of recordings apart", "[graphs]") {
  std::set<std::size_t> hashes;
  for (int pool = 0; pool < 2000; ++pool) {
    hashes.insert(c10::MempoolIdHash()(pool_id(DeviceGraphs::Pool{pool})));
  }
  CHECK(hashes.size() == 2000);
}

TEST_CASE("in deterministic runs LibTorch must not fill new memory, or nothing is recorded", "[graphs]") {
  struct Deterministic {
    explicit Deterministic(bool fills) {
      at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
      at::globalContext().setDeterministicFillUninitializedMemory(fills);
    }
    ~Deterministic() {
      at::globalContext().setDeterministicAlgorithms(false, false);
      at::globalContext().setDeterministicFillUninitializedMemory(true);
    }
  };
  for (const bool fills : {true, false}) {
    const Deterministic mode(fills);
    const Setting setting = with_graphs({.schedule = "1f1b", .stages = 2, .shape = BatchShape::many});
    for (const GraphCounts& counts : counts_of(setting)) {
      CHECK((counts.refusal.find("fills new memory") != std::string::npos) == fills);
      CHECK((counts.repeated > 0) == !fills);
    }
  }
}

TEST_CASE("a device that cannot record runs everything as it is, and says why", "[graphs]") {
  class Unwilling final : public DeviceGraphs {
   public:
    Pool make_pool() override { return Pool{0}; }
    std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) override {
      // Half of the work is asked for before something cannot be recorded.
      return graphs_->record(pool == Pool{0} ? mine_ : pool, [&] {
        work();
        refuse();
      });
    }

   private:
    static void refuse() { throw InternalError("no room for a recording"); }
    std::shared_ptr<DeviceGraphs> graphs_ = fake_graphs();
    Pool mine_ = graphs_->make_pool();
  };
  Setting setting = with_graphs({.schedule = "zb_h1",
                                 .stages = 2,
                                 .model = ModelKind::gpt,
                                 .shape = BatchShape::many,
                                 .optimizer = CaseOptimizer::adamw,
                                 .dropout = true});
  setting.options.graphs = std::make_shared<Unwilling>();
  for (const GraphCounts& counts : counts_of(setting)) {
    CHECK(counts.recorded == 0);
    CHECK(counts.repeated == 0);
    CHECK_THAT(counts.refusal, Catch::Matchers::ContainsSubstring("no room for a recording"));
  }
}

TEST_CASE("layers that the host takes part in are not recorded", "[graphs]") {
  const Setting setting = with_graphs({.schedule = "1f1b", .stages = 2, .model = ModelKind::straggler});
  for (const GraphCounts& counts : counts_of(setting)) CHECK(counts.recorded == 0);
}
