// The memory proof against the counting allocator, whatever a program does: several stages per rank, split
// backwards with late weight halves, recomputation, old versions. What was proved is enough, and not much
// more than enough.

#include "engine/core/links.h"
#include "models/data/buckets.h"
#include "models/data/synthetic.h"
#include "models/families/captured.h"
#include "models/tensors/counting_allocator.h"
#include "partitioner/plan/profile.h"
#include "partitioner/plan/skips.h"
#include "profiler/layer_profiler.h"
#include "profiler/tied_weights.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/held_bytes.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/memory/held.h"
#include "schedules/program/step_program.h"
#include "test/engine/pipeline_case.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/full.h"
#include "test/support/padded_data.h"
#include "test/support/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// The case with a model in which activations weigh as much as parameters.
Setting roomy(const PipelineCase& pipeline) {
  Setting setting(pipeline);
  SyntheticDataConfig data;
  data.samples = 448;
  data.validation_samples = 64;
  data.classes = 10;
  std::int64_t micro_batch = 64;
  ModelConfig model;
  switch (pipeline.model) {
    case ModelKind::mlp:
      data.shape = {96};
      model = {MlpConfig{.hidden = {128, 112, 96, 128, 80}}};
      break;
    case ModelKind::convnet:
      micro_batch = 8;
      data.shape = {3, 16, 16};
      model = {ConvnetConfig{.groups = {{16, 16}, {24}}, .classifier = {64}}};
      break;
    case ModelKind::gpt:
      micro_batch = 8;
      data.task = "tokens";
      data.shape = {32};
      model = {GptConfig{.blocks = 4, .hidden_size = 32, .heads = 2, .dropout = 0.1}};
      break;
    case ModelKind::captured:
    case ModelKind::lengths:
    case ModelKind::tied:
      throw std::logic_error("masked() is for captured models");
    case ModelKind::straggler:
      throw std::logic_error("a model of delays has next to no memory");
  }
  setting.data = open_dataset({.source = data}, {"test", "/data"});
  setting.model = build_model(model, setting.data->sample(), setting.model.precision, {"test", "/model"});
  const int layers = static_cast<int>(setting.model.layers.size());
  for (int s = 0; s < pipeline.stages; ++s) {
    setting.stage_layers[static_cast<std::size_t>(s)] = {s * layers / pipeline.stages,
                                                         (s + 1) * layers / pipeline.stages};
  }
  setting.shape.steps =
      3;  // one in the middle: optimizer state, old versions and the next step's data at once
  setting.shape.samples = data.samples;
  setting.shape.validation_samples = data.validation_samples;
  setting.shape.batch = 7 * micro_batch;
  setting.shape.micro_batch = setting.options.micro_batch_size = micro_batch;
  setting.options.record_steps = 0;
  setting.options.short_reads_in_take = false;  // what is read ahead is a row of the table
  setting.make_optimizer();
  return setting;
}

/// The case with weights that outweigh all activations, so that its peak is an update.
Setting heavy(const PipelineCase& pipeline) {
  Setting setting = roomy(pipeline);
  setting.model = build_model({MlpConfig{.hidden = {256, 256, 256}}}, setting.data->sample(),
                              setting.model.precision, {"test", "/model"});
  const int layers = static_cast<int>(setting.model.layers.size());
  for (int s = 0; s < pipeline.stages; ++s) {
    setting.stage_layers[static_cast<std::size_t>(s)] = {s * layers / pipeline.stages,
                                                         (s + 1) * layers / pipeline.stages};
  }
  setting.shape.batch = 7;
  setting.shape.micro_batch = setting.options.micro_batch_size = 1;
  setting.make_optimizer();
  return setting;
}

constexpr std::int64_t kPaddedMicroBatch = 1024;

/// The case with a captured model, whose middle stages read a mask and whose last brings its loss.
Setting masked(const PipelineCase& pipeline, const std::string& folder = "masked") {
  Setting setting = roomy(pipeline);
  setting.data = std::make_unique<PaddedData>(7 * kPaddedMicroBatch, kPaddedMicroBatch);
  if (folder == "lengths") setting.data = in_buckets(std::move(setting.data), {2, 3, 4}, {"test", "/data"});
  CapturedConfig captured;
  captured.path = STAGECRAFT_CAPTURED_MODELS "/" + folder;
  setting.model = build_model({captured}, setting.data->sample(), Precision{}, {"test", "/model"});
  setting.loss = setting.model.loss;
  const int layers = static_cast<int>(setting.model.layers.size());
  for (int s = 0; s < pipeline.stages; ++s) {
    setting.stage_layers[static_cast<std::size_t>(s)] = {s * layers / pipeline.stages,
                                                         (s + 1) * layers / pipeline.stages};
  }
  setting.shape.samples = 7 * kPaddedMicroBatch;
  setting.shape.validation_samples = kPaddedMicroBatch;
  setting.shape.batch = 7 * kPaddedMicroBatch;
  setting.shape.micro_batch = setting.options.micro_batch_size = kPaddedMicroBatch;
  setting.options.batch_size = setting.shape.batch;
  setting.make_optimizer();
  return setting;
}

Measurement measure(const Setting& setting) {
  ProfileRequest request;
  request.micro_batch_sizes = {setting.shape.micro_batch};
  request.repeats = 1;
  request.warmup = Seconds{0};
  request.data = [&](std::int64_t size, int) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(size));
    std::iota(indices.begin(), indices.end(), 0);
    ChainInput input{setting.data->uncut().inputs(Split::train, indices),
                     setting.data->targets(Split::train, indices)};
    const int layers = static_cast<int>(setting.model.layers.size());
    input.fields = read_fields(setting.data->uncut(), Split::train,
                               setting.model.fields_of(0, layers, setting.loss.get()), indices);
    return input;
  };
  std::map<int, OptimizerState> states;
  request.update = [&](int layer, const Tensors& parameters, const Tensors& gradients) {
    setting.options.optimizer->step(layer, {.learning_rate = 0}, parameters, gradients,
                                    std::vector<bool>(parameters.size(), true), states[layer]);
  };
  return profile_model(setting.model, *setting.loss, request).measurements.front();
}

CostTable costs_of(const Setting& setting, const Measurement& measurement) {
  CostTable costs;
  costs.network.levels = {{setting.placement.world(), Link{}}};
  costs.loss = measurement.loss_report();
  for (const auto& [first, last] : setting.stage_layers) {
    const bool with_loss = last == static_cast<int>(setting.model.layers.size());
    StageCosts& stage = costs.stages.emplace_back(stage_costs(measurement, first, last + (with_loss ? 1 : 0),
                                                              /*optimizer_bytes_per_parameter_byte=*/0));
    for (int layer = first; layer < last; ++layer) {
      stage.optimizer_state += setting.options.optimizer->state_bytes(layer);
    }
  }
  for (const TiedWeight& tie : tied_weights(setting.model)) costs.ties.push_back(tie.bytes);
  return costs;
}

/// Bytes per rank.
struct Peaks {
  std::vector<Bytes> proved, measured;
  /// The proved peak without its transfers: how many of those are still under way at that moment is up to the
  /// peer's pace, so a run may show all of them or none.
  std::vector<Bytes> certain;
  std::vector<std::string> at;  ///< where the proved peak is, and what it is made of
};

std::string made_of(const MemoryProof& memory) {
  return fmt::format(
      "weights {} versions {} gradients {} optimizer {} kept {} transfers {} transient {} at {}",
      memory.weights.value, memory.versions.value, memory.gradients.value, memory.optimizer_state.value,
      memory.kept.value, memory.transfers.value, memory.transient.value, memory.at);
}

using Programs = std::map<std::pair<SegmentKind, std::vector<int>>, LoweredProgram>;

/// Most bytes per rank, over a run's programs, by some table of what a rank holds.
std::vector<Bytes> peaks_by(const MemoryTable& table, const Programs& programs, const CostTable& costs) {
  std::vector<Bytes> peaks;
  for (const auto& [shape, program] : programs) {
    const std::vector<HeldBytes> held = held_bytes(program, costs, table);
    peaks.resize(held.size());
    for (std::size_t r = 0; r < held.size(); ++r) {
      for (const Bytes bytes : held[r].moments) peaks[r] = std::max(peaks[r], bytes);
    }
  }
  return peaks;
}

Peaks peaks_of(const Setting& setting, const CostTable& costs, Programs& programs) {
  const auto world = static_cast<std::size_t>(setting.placement.world());
  Peaks peaks{std::vector<Bytes>(world), std::vector<Bytes>(world), std::vector<Bytes>(world),
              std::vector<std::string>(world)};
  std::vector<Segment> segments;
  SegmentWalk walk(setting.shape);
  for (Segment segment; walk.next(segment);) {
    segments.push_back(segment);
    const auto [entry, fresh] = programs.try_emplace({segment.kind, segment.group_sizes});
    if (!fresh) continue;
    ScheduleProgram program = program_of(setting, segment, &costs);
    std::vector<Skip> skips;
    for (const SkipCosts& skip : costs.skips) skips.push_back({skip.from, skip.to});
    add_skips(program, skips);
    entry->second = lower(program);
    for (const MemoryProof& memory : prove(entry->second, &costs).memory) {
      const std::size_t r = memory.rank.index();
      if (memory.peak <= peaks.proved[r]) continue;
      peaks.proved[r] = memory.peak;
      peaks.certain[r] = memory.peak - memory.transfers;
      peaks.at[r] = made_of(memory);
    }
  }
  run_ranks(static_cast<int>(world), {.synchronous_sends = true}, [&](Transport& transport) {
    Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                  transport, setting.options);
    const auto program = [&](const Segment& segment) {
      return rank_program(programs.at({segment.kind, segment.group_sizes}), transport.rank());
    };
    for (std::size_t i = 0; i < segments.size(); ++i) {
      worker.read_ahead(program(segments[i]), segments[i]);
      // As a run does it: the data of the next step is read while this one ends.
      if (i + 1 < segments.size() && segments[i + 1].kind == segments[i].kind) {
        worker.read_ahead(program(segments[i + 1]), segments[i + 1]);
      }
      worker.run(program(segments[i]), segments[i], nullptr);
    }
    peaks.measured[transport.rank().index()] = worker.peak_bytes();
  });
  return peaks;
}

Peaks peaks_of(const Setting& setting, const CostTable& costs) {
  Programs programs;
  return peaks_of(setting, costs, programs);
}

/// `close`: the least share of what is certain that must be measured.
void check_peaks(const Setting& setting, const Measurement& measurement, double close = 0.95) {
  const Peaks peaks = peaks_of(setting, costs_of(setting, measurement));
  for (std::size_t r = 0; r < peaks.proved.size(); ++r) {
    INFO("rank " << r << ": " << peaks.measured[r].value << " of " << peaks.proved[r].value << ", "
                 << peaks.at[r]);
    CHECK(peaks.measured[r] <= peaks.proved[r]);
    CHECK(static_cast<double>(peaks.measured[r].value) > close * static_cast<double>(peaks.certain[r].value));
  }
}

struct Kind {  // no pair, which LibTorch's logging wants to print
  ModelKind model;
  PrecisionKind precision;
};

/// What runs are made of, for GENERATE.
Catch::Generators::GeneratorWrapper<Kind> kinds() {
  return Catch::Generators::values<Kind>({{ModelKind::mlp, PrecisionKind::single},
                                          {ModelKind::convnet, PrecisionKind::single},
                                          {ModelKind::gpt, PrecisionKind::single},
                                          {ModelKind::convnet, PrecisionKind::bf16},
                                          {ModelKind::gpt, PrecisionKind::bf16}});
}

}  // namespace

TEST_CASE("measured memory is never more than was proved, and close to it, whatever the program",
          "[engine_memory]") {
  install_counting_allocator();
  const auto [model, precision] = GENERATE(kinds());
  const Measurement measurement = measure(roomy({.stages = 1, .model = model, .precision = precision}));
  int turn = static_cast<int>(model) + static_cast<int>(precision);
  for (const Schedule& schedule : schedules()) {
    for (const auto& [rewrite, recompute] :
         {std::pair{Rewrite::none, Recompute::none}, std::pair{Rewrite::split, Recompute::none},
          std::pair{Rewrite::none, Recompute::all}, std::pair{Rewrite::split, Recompute::all},
          std::pair{Rewrite::none, Recompute::all_but_last}}) {
      if (!full() && turn++ % 3 != 0) continue;  // a model has one or two of them with each schedule, in turn
      const int stages_per_rank = schedule.virtual_stages;
      const PipelineCase pipeline{.schedule = schedule.name,
                                  .stages = 2 * stages_per_rank,
                                  .ranks = 2,
                                  .placement = schedule.placement,
                                  .rewrite = rewrite,
                                  .recompute = recompute,
                                  .model = model,
                                  .shape = BatchShape::many,
                                  .optimizer = CaseOptimizer::adamw,
                                  .precision = precision,
                                  .clipping = schedule.clips ? 1.0 : 0};
      if (!served(pipeline)) continue;
      INFO(pipeline.name());
      check_peaks(roomy(pipeline), measurement);
    }
  }
}

TEST_CASE("measured memory is never more than was proved, and close to it, with replicas",
          "[engine_memory]") {
  install_counting_allocator();
  const auto [model, precision] = GENERATE(kinds());
  const Measurement measurement = measure(roomy({.stages = 1, .model = model, .precision = precision}));
  for (const char* schedule : {"1f1b", "zb_h1", "pipedream", "2bw"}) {
    for (const std::vector<int>& widths : {std::vector{2, 1}, {1, 2}, {3}}) {
      const PipelineCase pipeline{.schedule = schedule,
                                  .stages = static_cast<int>(widths.size()),
                                  .widths = widths,
                                  .model = model,
                                  .shape = BatchShape::many,
                                  .optimizer = CaseOptimizer::adamw,
                                  .precision = precision};
      if (!served(pipeline)) continue;
      INFO(pipeline.name());
      Setting setting = roomy(pipeline);
      check_peaks(setting, measurement);
    }
  }
}

TEST_CASE("measured memory is never more than was proved, and close to it, with any optimizer",
          "[engine_memory]") {
  install_counting_allocator();
  const auto [model, precision] = GENERATE(kinds());
  const Measurement measurement = measure(roomy({.stages = 1, .model = model, .precision = precision}));
  for (std::size_t optimizer = 0; optimizer < kCaseOptimizers; ++optimizer) {
    for (const char* schedule : {"1f1b", "pipedream", "2bw"}) {
      const PipelineCase pipeline{.schedule = schedule,
                                  .stages = 2,
                                  .model = model,
                                  .shape = BatchShape::many,
                                  .optimizer = static_cast<CaseOptimizer>(optimizer),
                                  .precision = precision};
      INFO(pipeline.name());
      check_peaks(roomy(pipeline), measurement);
    }
  }
}

TEST_CASE("what an update makes for itself is part of the proved peak", "[engine_memory]") {
  install_counting_allocator();
  for (const CaseOptimizer optimizer :
       {CaseOptimizer::nadam, CaseOptimizer::lion, CaseOptimizer::adafactor, CaseOptimizer::muon}) {
    const Measurement measurement = measure(heavy({.stages = 1, .optimizer = optimizer}));
    for (const char* schedule : {"1f1b", "pipedream"}) {
      const PipelineCase pipeline{
          .schedule = schedule, .stages = 2, .shape = BatchShape::many, .optimizer = optimizer};
      INFO(pipeline.name());
      const Setting setting = heavy(pipeline);
      check_peaks(setting, measurement, 0.95);
      CostTable costs = costs_of(setting, measurement);
      for (StageCosts& stage : costs.stages) stage.step_peak.reset();
      const Peaks peaks = peaks_of(setting, costs);
      CHECK(peaks.measured[0] > peaks.proved[0]);
    }
  }
}

TEST_CASE("measured memory is never more than was proved, and close to it, where stages load fields",
          "[engine_memory]") {
  install_counting_allocator();
  const Measurement measurement = measure(masked({.stages = 1}));
  for (const char* schedule : {"fill_drain", "1f1b", "zb_h1", "pipedream"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      const PipelineCase pipeline{.schedule = schedule,
                                  .stages = 4,
                                  .recompute = recompute,
                                  .shape = BatchShape::many,
                                  .optimizer = CaseOptimizer::adamw};
      INFO(pipeline.name());
      check_peaks(masked(pipeline), measurement);
    }
  }
}

TEST_CASE("measured memory is never more than was proved, and close to it, where weights are tied",
          "[engine_memory]") {
  install_counting_allocator();
  const Measurement measurement = measure(masked({.stages = 1}, "tied"));
  for (const char* schedule : {"1f1b", "zb_h1", "2bw"}) {
    for (const std::vector<int>& widths : {std::vector<int>{}, {2, 1, 1}}) {
      const PipelineCase pipeline{.schedule = schedule,
                                  .stages = 3,
                                  .widths = widths,
                                  .shape = BatchShape::many,
                                  .optimizer = CaseOptimizer::adamw};
      INFO(pipeline.name());
      check_peaks(masked(pipeline, "tied"), measurement);
    }
  }
}

TEST_CASE("measured memory is never more than was proved where samples are cut to several lengths",
          "[engine_memory]") {
  install_counting_allocator();
  const Measurement measurement = measure(masked({.stages = 1}, "lengths"));
  for (const char* schedule : {"1f1b", "zb_h1", "pipedream", "2bw"}) {
    const PipelineCase pipeline{
        .schedule = schedule, .stages = 3, .shape = BatchShape::many, .optimizer = CaseOptimizer::adamw};
    INFO(pipeline.name());
    check_peaks(masked(pipeline, "lengths"), measurement, 0.5);  // the proof is of samples that are not cut
  }
}

TEST_CASE("measured memory is never more than was proved, and close to it, where values bypass stages",
          "[engine_memory]") {
  install_counting_allocator();
  const Measurement measurement = measure(masked({.stages = 1}, "mixed"));
  for (const char* schedule : {"1f1b", "zb_h1", "zb_v", "pipedream"}) {
    const bool v = std::string_view(schedule) == "zb_v";
    const PipelineCase pipeline{.schedule = schedule,
                                .stages = 4,
                                .ranks = v ? 2 : 4,
                                .placement = v ? PlacementKind::v : PlacementKind::straight,
                                .shape = BatchShape::many,
                                .optimizer = CaseOptimizer::adamw};
    INFO(pipeline.name());
    Setting setting = masked(pipeline, "mixed");
    setting.stage_layers = {{0, 3}, {3, 5}, {5, 6}, {6, 12}};  // layer 5 passes by what 4 makes and 6 reads
    setting.make_optimizer();
    Plan plan;
    plan.stages.resize(4);
    plan.costs = costs_of(setting, measurement);
    set_skips(plan,
              link_bytes(setting.model, setting.stage_layers, setting.shape.micro_batch, /*direct=*/true));
    CostTable& costs = *plan.costs;
    REQUIRE(costs.skips.size() == 1);
    const Peaks peaks = peaks_of(setting, costs);
    costs.skips.front().bytes = Bytes{};
    const Peaks without = peaks_of(setting, costs);
    bool needed = false;
    for (std::size_t r = 0; r < peaks.proved.size(); ++r) {
      INFO("rank " << r << ": " << peaks.measured[r].value << " of " << peaks.proved[r].value << ", "
                   << peaks.at[r]);
      CHECK(peaks.measured[r] <= peaks.proved[r]);
      CHECK(static_cast<double>(peaks.measured[r].value) > 0.9 * static_cast<double>(peaks.certain[r].value));
      needed = needed || peaks.measured[r] > without.proved[r];
    }
    CHECK(needed);  // what the ends of the skip hold is part of the proof
  }
}

TEST_CASE("recomputation takes less memory than keeping activations, measured as proved", "[engine_memory]") {
  install_counting_allocator();
  const Measurement measurement = measure(roomy({.stages = 1, .model = ModelKind::gpt}));
  for (const char* schedule : {"fill_drain", "1f1b", "zb_h1", "pipedream"}) {
    std::map<Recompute, Peaks> peaks;
    for (const Recompute recompute : {Recompute::none, Recompute::all, Recompute::all_but_last}) {
      const PipelineCase pipeline{.schedule = schedule,
                                  .stages = 2,
                                  .recompute = recompute,
                                  .model = ModelKind::gpt,
                                  .shape = BatchShape::many,
                                  .optimizer = CaseOptimizer::adamw};
      const Setting setting = roomy(pipeline);
      peaks[recompute] = peaks_of(setting, costs_of(setting, measurement));
    }
    INFO(schedule);
    // The first rank, which has most in flight.
    CHECK(peaks[Recompute::all].measured[0] < peaks[Recompute::none].measured[0]);
    CHECK(peaks[Recompute::all].measured[0] <= peaks[Recompute::all_but_last].measured[0]);
    CHECK(peaks[Recompute::all_but_last].measured[0] <= peaks[Recompute::none].measured[0]);
  }
}

TEST_CASE("what a run measures is more than a memory table without one of its rows proves",
          "[engine_memory]") {
  install_counting_allocator();
  struct Case {
    const char* schedule;
    int stages, ranks;
    Recompute recompute;
    PrecisionKind precision;
    bool fields = false;
    ModelKind model = ModelKind::convnet;
  };
  std::set<std::string> missed;
  const auto name = [](const char* kind, std::size_t row) { return fmt::format("{} {}", kind, row); };
  for (const auto& [schedule, stages, ranks, recompute, precision, fields, model] :
       {Case{"zb_v", 4, 2, Recompute::none, PrecisionKind::single},
        Case{"zb_v", 4, 2, Recompute::none, PrecisionKind::bf16},
        Case{"interleaved_1f1b", 4, 1, Recompute::none, PrecisionKind::single},
        Case{"interleaved_1f1b", 4, 2, Recompute::all, PrecisionKind::single},
        // The same without convolutions: on a processor without AVX-512 their scratch memory, which the
        // proof adds at its largest, is larger than a gradient handed over.
        Case{"interleaved_1f1b", 4, 1, Recompute::none, PrecisionKind::single, false, ModelKind::gpt},
        Case{"1f1b", 4, 4, Recompute::none, PrecisionKind::single, true}}) {
    const PipelineCase pipeline{.schedule = schedule,
                                .stages = stages,
                                .ranks = ranks,
                                .placement = find_schedule(schedule).placement,
                                .recompute = recompute,
                                .model = model,
                                .shape = BatchShape::many,
                                .optimizer = CaseOptimizer::adamw,
                                .precision = precision};
    INFO(pipeline.name());
    const Setting setting = fields ? masked(pipeline) : roomy(pipeline);
    const CostTable costs = costs_of(
        setting, measure(fields ? masked({.stages = 1})
                                : roomy({.stages = 1, .model = pipeline.model, .precision = precision})));
    Programs programs;
    const std::vector<Bytes> measured = peaks_of(setting, costs, programs).measured;
    const auto misses = [&](const MemoryTable& table) {
      const std::vector<Bytes> peaks = peaks_by(table, programs, costs);
      return !std::equal(measured.begin(), measured.end(), peaks.begin(), std::less_equal<>());
    };
    CHECK_FALSE(misses(kMemoryTable));
    for (std::size_t i = 0; i < kMemoryTable.standing.size(); ++i) {
      std::vector<StandingRow> rows(kMemoryTable.standing.begin(), kMemoryTable.standing.end());
      rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
      if (misses({rows, kMemoryTable.held})) missed.insert(name("standing", i));
    }
    for (std::size_t i = 0; i < kMemoryTable.held.size(); ++i) {
      std::vector<HeldRow> rows(kMemoryTable.held.begin(), kMemoryTable.held.end());
      rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
      if (misses({kMemoryTable.standing, rows})) missed.insert(name("held", i));
    }
  }
  for (std::size_t i = 0; i < kMemoryTable.standing.size(); ++i) {
    INFO("standing row " << i);
    // One batch as it is read, before it is made into another type, is within what the others leave.
    const bool read = kMemoryTable.standing[i].bytes == &StageCosts::read;
    CHECK((missed.contains(name("standing", i)) || read));
  }
  for (std::size_t i = 0; i < kMemoryTable.held.size(); ++i) {
    INFO("held row " << i);
    CHECK(missed.contains(name("held", i)));
  }
}
