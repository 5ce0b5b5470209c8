// What a run needs against what its processes may have: who shares a limit, and what a refusal says.

#include "engine/run/resolve/memory_check.h"

#include "base/files.h"
#include "base/json.h"
#include "engine/run/resolve/device_reserve.h"
#include "engine/run/start/prepare.h"
#include "schedules/checker/nccl_rules.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <limits>

using namespace stagecraft;
using test::says;
using test::ScratchFolder;

namespace {

constexpr const char* kConfig = R"({
  "model": {"family": "mlp", "hidden": [16, 12]},
  "data": {"type": "synthetic", "samples": 96, "validation_samples": 16, "shape": [8], "classes": 4},
  "loss": {"type": "cross_entropy"},
  "optimizer": {"type": "AdamW"},
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "train_steps": 2, "threads_per_rank": 1,
  "profiler": {"repeats": 2, "warmup_ms": 0},
  "pipeline": {"cuts": [2]}
})";

/// A run of two stages on two ranks, prepared and proved; `change` gets its plan before.
struct PreparedRun {
  ScratchFolder folder;
  std::unique_ptr<RunSetup> setup;

  explicit PreparedRun(bool costs = true, const std::vector<std::string>& overrides = {}) {
    TrainRequest request;
    request.config = folder.write("run.json", kConfig);
    request.dry_run = true;
    setup = prepare(request, read_run_config(request.config, overrides), std::nullopt, [](const RunPaths&) {
            }).setup;
    if (costs) return;
    Json plan = json::write(setup->plan());
    plan.erase("costs");
    plan.erase("predicted");
    request.plan = folder.write("plan.json", plan.dump());
    setup = prepare(request, read_run_config(request.config), std::nullopt, [](const RunPaths&) {}).setup;
  }
  [[nodiscard]] Bytes need(int rank) const {
    return memory_needs(*setup).at(static_cast<std::size_t>(rank)).bytes;
  }
  [[nodiscard]] std::string refusal(const std::vector<ProcessMemory>& processes) const {
    try {
      check_memory(*setup, processes);
      return "";
    } catch (const RefusedError& error) {
      return error.what();
    }
  }
};

MemoryLimit machine_with(Bytes available) {
  return {"this machine's memory", "machine", available + available, available};
}

ProcessMemory process(const std::string& machine, std::vector<Rank> ranks, std::vector<MemoryLimit> limits) {
  return {machine, std::move(ranks), std::move(limits)};
}

}  // namespace

TEST_CASE("ranks of one process fit together or not at all", "[memory_check]") {
  const PreparedRun run;
  const Bytes both = run.need(0) + run.need(1);
  CHECK(run.need(0) == run.setup->programs().memory()[0]);
  CHECK(run.refusal({process("a", {Rank{0}, Rank{1}}, {machine_with(both)})}).empty());
  CHECK(run.refusal({process("a", {Rank{0}, Rank{1}}, {})}).empty());  // nothing is known
  const std::string refusal =
      run.refusal({process("a", {Rank{0}, Rank{1}}, {machine_with(both - Bytes{1})})});
  INFO(refusal);
  CHECK(says(refusal, "2 ranks need "));
  CHECK(says(refusal, " are free of this machine's memory ("));
  CHECK(says(refusal, "rank 0: stage 0 needs "));
  CHECK(says(refusal, "rank 1: stage 1 needs "));
  CHECK(says(refusal, "optimizer state "));
  CHECK(says(refusal, "the largest layer is \"hidden1.linear\" (linear) with "));
  CHECK(says(refusal, "What would fit, each alone:"));
  CHECK(says(refusal, "train_micro_batch_size_per_gpu 4 (in proportion)"));
  CHECK(says(refusal, "2 machines like this one, with 1 of these ranks on each"));
  CHECK(says(refusal, "1 B more memory"));
}

TEST_CASE("a refusal names the schedule and the recomputation that would fit", "[memory_check]") {
  const PreparedRun run(true, {"pipeline.schedule=fill_drain", "train_batch_size=96",
                               "model.hidden=[64,64,64,64]", "pipeline.cuts=[4]"});
  const Bytes both = run.need(0) + run.need(1);
  const std::string refusal =
      run.refusal({process("a", {Rank{0}, Rank{1}}, {machine_with(both - Bytes{1})})});
  INFO(refusal);
  CHECK(says(refusal, "pipeline.schedule \"1f1b\": "));
  CHECK(says(refusal, "activation_checkpointing.recompute \"all\": "));
}

TEST_CASE("processes share what is the machine's, and nothing else", "[memory_check]") {
  const PreparedRun run;
  const Bytes both = run.need(0) + run.need(1);
  const Bytes most = std::max(run.need(0), run.need(1));
  const MemoryLimit own{"ulimit -d", "process", most, most};
  const MemoryLimit cgroup{"memory.max of cgroup /job", "cgroup 1:2", most, most};
  const auto two = [&](const char* second, const MemoryLimit& limit) {
    return std::vector{process("a", {Rank{0}}, {limit}), process(second, {Rank{1}}, {limit})};
  };
  CHECK(run.refusal(two("a", machine_with(both))).empty());
  CHECK(says(run.refusal(two("a", machine_with(most))), "2 ranks need "));
  CHECK(run.refusal(two("b", machine_with(most))).empty());
  CHECK(run.refusal(two("a", own)).empty());
  CHECK(says(run.refusal(two("a", cgroup)), "memory.max of cgroup /job"));
  CHECK(run.refusal(two("b", cgroup)).empty());
  // A rank alone is named alone. The least that any of them saw is what counts.
  const MemoryLimit little{"ulimit -d", "process", most, Bytes{1}};
  const std::string refusal =
      run.refusal({process("a", {Rank{0}}, {machine_with(both)}), process("a", {Rank{1}}, {little})});
  INFO(refusal);
  CHECK(says(refusal, "rank 1: stage 1 needs "));
  CHECK_FALSE(says(refusal, "rank 0"));
  CHECK(says(refusal, "more ranks: stages of fewer layers"));
  CHECK(says(run.refusal({process("a", {Rank{0}}, {machine_with(both)}),
                          process("a", {Rank{1}}, {machine_with(both - Bytes{1})})}),
             "2 ranks need "));
}

TEST_CASE("without costs the least is known: weights, gradients and optimizer state", "[memory_check]") {
  const PreparedRun run(/*costs=*/false);
  REQUIRE(run.setup->programs().memory().empty());
  CHECK(run.need(0) == Bytes{4 * 4 * (8 * 16 + 16)});
  CHECK(run.need(1) == Bytes{4 * 4 * (16 * 12 + 12 + 12 * 4 + 4)});
  const std::string refusal = run.refusal({process("a", {Rank{0}, Rank{1}}, {machine_with(Bytes{100})})});
  INFO(refusal);
  CHECK(says(refusal, "at least optimizer state 2.0 KiB, weights 1.0 KiB"));
}

TEST_CASE("costs that the model knows better are refused in a plan, each by its key", "[memory_check]") {
  const PreparedRun made;
  const Json plan = json::write(made.setup->plan());
  const auto with = [&](const Json& changed, const std::vector<std::string>& overrides = {}) {
    const ScratchFolder folder;
    TrainRequest request;
    request.config = folder.write("run.json", kConfig);
    request.plan = folder.write("plan.json", changed.dump());
    request.dry_run = true;
    return prepare(request, read_run_config(request.config, overrides), std::nullopt, [](const RunPaths&) {});
  };
  CHECK(with(plan).notes.empty());
  for (int stage = 0; stage < 2; ++stage) {
    for (const char* key : {"parameter_bytes", "input_bytes", "output_bytes"}) {
      if (stage == 1 && std::string(key) == "output_bytes") continue;  // the loss has none
      for (const std::int64_t by : {-1, 1, 1'000'000}) {
        Json changed = plan;
        Json& number = changed["costs"]["stages"][stage][key];
        number = number.get<std::int64_t>() + by;
        INFO(stage << " " << key << " " << by);
        CHECK_THROWS_WITH(with(changed), Catch::Matchers::ContainsSubstring(fmt::format(
                                             "plan.json: /costs/stages/{}/{}: expected ", stage, key)));
      }
    }
  }
  // Another optimizer is no mistake: what it keeps counts, in the proof too.
  const auto other = with(plan, {"optimizer.type=SGD"});
  REQUIRE(other.notes.size() == 1);
  CHECK(says(other.notes.front(), "has the state of another optimizer in its costs than SGD keeps"));
  CHECK(memory_needs(*other.setup)[0].bytes + Bytes{2 * 4 * (8 * 16 + 16)} == made.need(0));
}

TEST_CASE("what crosses between ranks reads back", "[memory_check]") {
  const ProcessMemory here = process_memory({Rank{3}});
  REQUIRE(!here.limits.empty());
  const auto again = json::read<ProcessMemory>(json::write(here), {"", ""});
  CHECK(again.machine == here.machine);
  CHECK((again.ranks == here.ranks));
  CHECK(again.limits.at(0).available == here.limits.at(0).available);
}

TEST_CASE("a profile is refused where not even the weights fit", "[memory_check]") {
  const PreparedRun run;
  const RunConfig& config = run.setup->config();
  const TrainingInputs& inputs = run.setup->inputs();
  const Bytes least = least_profile_bytes(config, inputs);
  // AdamW: weights, gradients and twice as much of state; and a micro-batch of 8 through 8 x 16.
  CHECK(least == Bytes{4 * 4 * (8 * 16 + 16 + 16 * 12 + 12 + 12 * 4 + 4) + 4 * 8 * (16 + 12)});
  const auto refusal = [&](int processes, const MemoryLimit& limit) -> std::string {
    try {
      check_profile_memory(config, "run.json", inputs, processes, {limit});
      return "";
    } catch (const RefusedError& error) {
      return error.what();
    }
  };
  CHECK(refusal(1, machine_with(least)).empty());
  CHECK(refusal(2, machine_with(least + least)).empty());
  CHECK(says(refusal(1, machine_with(least - Bytes{1})),
             "run.json: measuring the layers of mlp 16-12 needs at least "));
  CHECK(says(refusal(2, machine_with(least + least - Bytes{1})), " on each of 2 ranks here"));
  CHECK(refusal(2, {"ulimit -d", "process", least, least}).empty());
}

TEST_CASE("a process keeps the programs of its own ranks", "[memory_check]") {
  const PreparedRun run;
  const RunSetup& setup = *run.setup;
  SegmentWalk walk(setup.shape());
  Segment segment;
  while (walk.next(segment)) {
    for (const Rank own : {Rank{0}, Rank{1}}) {
      int looked_at = 0;
      const RunPrograms programs(setup.plan(), setup.shape(), setup.config().comms.slots_per_channel, {own},
                                 [&](const std::vector<const LoweredProgram*>& all) {
                                   for (const LoweredProgram* program : all) {
                                     CHECK(program->ranks.size() == 2);
                                     ++looked_at;
                                   }
                                 });
      CHECK(looked_at > static_cast<int>(programs.count()));  // pairs of steps too
      CHECK((programs.of(segment, own)->list == setup.programs().of(segment, own)->list));
      CHECK((programs.memory() == setup.programs().memory()));
      CHECK_THROWS_AS(programs.of(segment, Rank{1 - own.value}), InternalError);
    }
  }
}

TEST_CASE("what a GPU takes beside tensors follows from how it is used", "[memory_check]") {
  const DeviceUse plain{
      .proved = Bytes{20'000'000}, .transient = Bytes{1000}, .gradients = 3, .largest_gradient = 200'000};
  const DeviceReserve least = device_reserve(plain);
  CHECK(least.workspaces == Bytes{32 << 20});
  CHECK(least.communicators == Bytes{0});
  CHECK(least.recordings == Bytes{0});
  CHECK(least.norm == Bytes{3 * (4 * 8 + 512)});
  CHECK(least.blocks == Bytes{1'000'000});
  DeviceUse all = plain;
  all.in_flight = 4;
  all.lines = 3;
  all.groups = 1;
  all.records = true;
  const DeviceReserve most = device_reserve(all);
  CHECK(most.workspaces == Bytes{64 << 20});
  CHECK(most.communicators == Bytes{(3 * 64 + 192) << 20});
  CHECK(most.recordings == Bytes{3000});
  CHECK(most.sum() == most.workspaces + most.communicators + most.recordings + most.norm + most.blocks);

  const PreparedRun run;
  const Rank last{1};
  transport::NcclWiring wiring;
  const RunPrograms programs(
      run.setup->plan(), run.setup->shape(), run.setup->config().comms.slots_per_channel, {last},
      [&](const std::vector<const LoweredProgram*>& lowered) {
        wiring = transport::nccl_wiring(lowered, nccl_rules_for(lowered), SumOrder::ordered);
      });
  CHECK(programs.count() == run.setup->programs().count());
  const DeviceUse of_run = device_use(*run.setup, last, Bytes{100}, Bytes{10}, wiring);
  CHECK(of_run.lines == 3);  // activations in, gradients and losses out
  CHECK(of_run.in_flight == 1);
  CHECK(of_run.gradients == 4);
  CHECK(of_run.largest_gradient == 16 * 12);
  CHECK(device_use(*run.setup, last, Bytes{100}, Bytes{10}, {}).lines == 0);
}

TEST_CASE("a planner without a cluster leaves a card what its ranks take beside tensors", "[memory_check]") {
  const PreparedRun run;
  const Model& model = run.setup->inputs().model;
  RunConfig config = run.setup->config();
  config.gradient_norm = false;
  config.cuda.graphs = true;
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  Cluster cluster = flat_cluster("this machine", 4, Link{Seconds{1e-5}, 1e9});
  cap_at_card(cluster, config, model, Bytes{8000 * kMiB}, /*ranks_per_card=*/2);
  CHECK(cluster.memory == Bytes{4000 * kMiB});
  // Two streams' workspaces, four lines, a twentieth.
  CHECK(cluster.memory_reserve == Bytes{(64 + 4 * 64 + 200) * kMiB});
  Cluster alone = flat_cluster("this machine", 1, Link{Seconds{1e-5}, 1e9});
  cap_at_card(alone, config, model, Bytes{8000 * kMiB}, 1);
  CHECK(alone.memory_reserve == Bytes{(64 + 400) * kMiB});
  cap_at_card(alone, config, model, Bytes{10 * kMiB},
              1);  // a card that others fill: nothing fits, said by the planner
  CHECK(alone.usable_memory() == Bytes{1});
}

TEST_CASE("ranks of one GPU share its memory, those of two do not", "[memory_check]") {
  const PreparedRun run;
  const auto on = [&](int rank, const std::string& gpu, Bytes available) {
    return ProcessMemory{"here", {Rank{rank}}, {{"the memory of " + gpu, gpu, available, available}}};
  };
  const Bytes both = run.need(0) + run.need(1);
  CHECK(run.refusal({on(0, "GPU a", run.need(0)), on(1, "GPU b", run.need(1))}).empty());
  CHECK(run.refusal({on(0, "GPU a", both), on(1, "GPU a", both)}).empty());
  const Bytes less{both.value - 1};
  const std::string refusal = run.refusal({on(0, "GPU a", less), on(1, "GPU a", less)});
  CHECK(says(refusal, "2 ranks need"));
  CHECK(says(refusal, "the memory of GPU a"));
}
