// Before its first transfer a rank has used everything that its steps need: what a GPU would do for the first time, or
// anew, in a step (load a kernel, take memory, make or drop a recording) may make its host wait for all that is
// launched.

#include "engine/core/worker.h"
#include "schedules/generators/registry.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <fmt/format.h>

#include <atomic>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// What the devices did for the first time in the run's segments, two times through, by rank. Each such thing waits for
/// all that its device has launched.
std::vector<std::vector<std::string>> first_times(const Setting& setting, bool rehearses) {
  std::vector<std::vector<std::string>> all(static_cast<std::size_t>(setting.placement.world()));
  const Wrap wrap = [nccl = over_nccl(setting)](std::unique_ptr<Transport> hosts,
                                                std::shared_ptr<FakeDevice> device) {
    set_on_device_wide_wait([device] { device->synchronize(Seconds{20}); });
    return nccl(std::move(hosts), std::move(device));
  };
  run_on_devices(setting.placement.world(), wrap, [&](Transport& transport) {
    Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                  transport, setting.options);
    const std::vector<Worker::Rehearsed> segments = segments_to_rehearse(setting, transport.rank());
    if (rehearses) demand(worker.rehearse(segments) == "", "the rehearsal comes to its end");
    const std::size_t before = device_wide_waits().size();
    for (int time = 0; time < 2; ++time) {
      for (const auto& [program, segment] : segments) worker.run(program, segment, [](const StepReport&) {});
    }
    worker.settle();
    const std::vector<std::string>& waits = device_wide_waits();
    all[transport.rank().index()] = {waits.begin() + static_cast<std::ptrdiff_t>(before), waits.end()};
    set_on_device_wide_wait(nullptr);
  });
  return all;
}

std::size_t total(const std::vector<std::vector<std::string>>& all) {
  std::size_t sum = 0;
  for (const std::vector<std::string>& of_rank : all) sum += of_rank.size();
  return sum;
}

std::string words(const std::vector<std::vector<std::string>>& all) {
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const std::string& what : all[rank]) text += fmt::format("rank {}: {}\n", rank, what);
  }
  return text;
}

std::vector<PipelineCase> cases() {
  std::vector<PipelineCase> all;
  for (const Schedule& schedule : schedules()) {
    PipelineCase pipeline = at_home(schedule, 2 + static_cast<int>(all.size() % 2));
    demand(pipeline.stages <= 9 && served(pipeline), "every schedule has its turn");
    pipeline.optimizer = CaseOptimizer::adamw;
    all.push_back(pipeline);
  }
  PipelineCase replicas{.schedule = "1f1b", .stages = 2, .widths = {2, 1}, .optimizer = CaseOptimizer::adam};
  all.push_back(replicas);
  replicas.schedule = "pipedream";
  all.push_back(replicas);
  for (const ModelKind model : {ModelKind::convnet, ModelKind::gpt, ModelKind::captured, ModelKind::tied}) {
    all.push_back({.schedule = "1f1b",
                   .stages = 2,
                   .recompute = model == ModelKind::gpt ? Recompute::all : Recompute::none,
                   .model = model,
                   .shape = BatchShape::short_ends,
                   .optimizer = CaseOptimizer::adamw,
                   .dropout = true,
                   .clipping = 0.05});
  }
  return all;
}

}  // namespace

TEST_CASE("a rehearsed rank's steps do nothing for the first time", "[rehearsal]") {
  std::size_t without = 0;
  int runs = 0;
  for (const PipelineCase& pipeline : cases()) {
    INFO(pipeline.name());
    const Setting setting = with_graphs(pipeline);
    CHECK(words(first_times(setting, true)) == "");
    without += total(first_times(setting, false));
    ++runs;
  }
  std::cout << fmt::format(
      "{} runs over NCCL; without a rehearsal their steps have {} first uses, "
      "allocations and recordings\n",
      runs, without);
  CHECK(without > 0);
}

TEST_CASE("a rehearsed run equals the oracle to the bit", "[rehearsal]") {
  int turn = 0;
  for (const PipelineCase& pipeline : cases()) {
    const bool cheap = pipeline.model == ModelKind::mlp || pipeline.model == ModelKind::convnet;
    if (!cheap || turn++ % 2 != 0) continue;
    INFO(pipeline.name());
    Setting setting = with_graphs(pipeline);
    setting.rehearses = true;
    CHECK(run_and_compare(setting, over_nccl(setting)) == "");
  }
}

namespace {

/// Cannot be read, the n-th time.
class FailsOnce final : public Dataset {
 public:
  FailsOnce(const Dataset& data, int which) : data_(data), which_(which) {}
  std::int64_t size(Split split) const override { return data_.size(split); }
  SampleSpec sample() const override { return data_.sample(); }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    if (++asked_ == which_) throw InputError("the disk has a bad moment");
    return data_.inputs(split, indices);
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return data_.targets(split, indices);
  }
  std::string fingerprint() const override { return data_.fingerprint(); }
  std::string summary() const override { return data_.summary(); }

 private:
  const Dataset& data_;
  int which_;
  mutable std::atomic<int> asked_ = 0;
};

}  // namespace

TEST_CASE("a rehearsal that fails leaves nothing behind", "[rehearsal]") {
  for (const char* schedule : {"1f1b", "pipedream"}) {
    for (const int which : {1, 4, 6}) {
      const PipelineCase pipeline{
          .schedule = schedule, .stages = 2, .model = ModelKind::convnet, .optimizer = CaseOptimizer::adamw};
      INFO(pipeline.name() << ", read " << which);
      const Setting setting = with_graphs(pipeline);
      const OracleResult& oracle = oracle_of(setting);
      std::vector<std::string> said(2);
      std::vector<std::map<int, LayerState>> states(2);
      run_on_devices(2, over_nccl(setting), [&](Transport& transport) {
        const FailsOnce data(*setting.data, which);
        Worker worker(setting.model, *setting.loss, data, setting.stage_layers, setting.placement, transport,
                      setting.options);
        said[transport.rank().index()] = worker.rehearse(segments_to_rehearse(setting, transport.rank()));
        SegmentWalk walk(setting.shape);
        for (Segment segment; walk.next(segment);)
          worker.run(setting.programs->of(setting, segment, transport.rank()), segment,
                     [](const StepReport&) {});
        worker.settle();
        for (const int layer : worker.layers()) states[transport.rank().index()][layer] = worker.state(layer);
      });
      CHECK(said[0].find("bad moment") != std::string::npos);
      CHECK(said[1] == "");  // reads no inputs
      for (const auto& of_rank : states) {
        for (const auto& [layer, state] : of_rank) {
          const auto at = static_cast<std::size_t>(layer);
          for (std::size_t i = 0; i < oracle.parameters[at].size(); ++i)
            CHECK(state.parameters[i].equal(oracle.parameters[at][i].cpu()));
          for (std::size_t i = 0; i < oracle.buffers[at].size(); ++i)
            CHECK(state.buffers[i].equal(oracle.buffers[at][i].cpu()));
        }
      }
    }
  }
}
